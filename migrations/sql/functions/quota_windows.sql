-- Completes an answer with the windows of the scopes that have the least left.
CREATE OR REPLACE FUNCTION quota_windows(
    p_answer quota_answer, p_scope_ids uuid[], p_now timestamptz
)
RETURNS quota_answer
LANGUAGE plpgsql
AS $$
DECLARE
    s record;
BEGIN
    FOR s IN
        SELECT
            p.requests_per_minute AS requests, p.tokens_per_minute AS tokens,
            limit_refilled(st.requests_used, p.requests_per_minute, st.refilled_at, p_now)
                AS requests_used,
            limit_refilled(st.tokens_used, p.tokens_per_minute, st.refilled_at, p_now)
                AS tokens_used
        FROM limit_state AS st JOIN limit_policy AS p USING (scope_id)
        WHERE st.scope_id = ANY (p_scope_ids) ORDER BY p.scope_kind
    LOOP
        IF s.requests IS NOT NULL AND coalesce(p_answer.remaining_requests
            > greatest(0, s.requests * 60000000 - s.requests_used) / 60000000, true) THEN
            p_answer.limit_requests := s.requests;
            p_answer.remaining_requests :=
                greatest(0, s.requests * 60000000 - s.requests_used) / 60000000;
            p_answer.reset_requests_us := (s.requests_used + s.requests - 1) / s.requests;
        END IF;
        IF s.tokens IS NOT NULL AND coalesce(p_answer.remaining_tokens
            > greatest(0, s.tokens * 60000000 - s.tokens_used) / 60000000, true) THEN
            p_answer.limit_tokens := s.tokens;
            p_answer.remaining_tokens :=
                greatest(0, s.tokens * 60000000 - s.tokens_used) / 60000000;
            p_answer.reset_tokens_us := (s.tokens_used + s.tokens - 1) / s.tokens;
        END IF;
    END LOOP;
    RETURN p_answer;
END
$$;
