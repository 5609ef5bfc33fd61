-- Reserves a prompt and up to p_completion_tokens from all scopes of a request, or from none.
-- Asked again for a request that runs or waits, it answers for that one.
CREATE OR REPLACE FUNCTION quota_reserve(
    p_request_id uuid, p_tenant_id uuid, p_project_id uuid, p_key_id uuid, p_model text,
    p_prompt_tokens bigint, p_completion_tokens bigint, p_prompt_price bigint,
    p_completion_price bigint, p_owner uuid, p_lease interval, p_now timestamptz,
    p_endpoint text DEFAULT NULL
)
RETURNS quota_answer
LANGUAGE plpgsql
AS $$
DECLARE
    v_scope_ids uuid[];
    v_now timestamptz;
    v_month date;
    v_old reservation;
    v_answer quota_answer;
    v_grant bigint := p_completion_tokens;
    v_room bigint;
    v_wait bigint;
    v_queue boolean := true;
    v_full boolean;
    v_is_rated boolean := false;
    v_is_busy boolean := false;
    s record;
BEGIN
    -- A crash of the server may forget a hold of the last moments; settling charges without it.
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT * INTO v_old FROM reservation
    WHERE request_id = p_request_id AND tenant_id = p_tenant_id FOR UPDATE;
    SELECT coalesce(array_agg(scope_id ORDER BY scope_id), '{}') INTO v_scope_ids
    FROM (
        SELECT scope_id FROM limit_state
        WHERE scope_id IN (p_tenant_id, p_project_id, p_key_id) AND tenant_id = p_tenant_id
        ORDER BY scope_id FOR UPDATE
    ) AS locked;
    -- Only now: another request may have charged while we waited for its lock.
    v_now := coalesce(p_now, clock_timestamp());
    v_month := limit_month(v_now);
    IF v_old.state = 'running' THEN
        v_answer.state := 'running';
        v_answer.completion_tokens := v_old.completion_tokens;
        RETURN quota_windows(v_answer, v_scope_ids, v_now);
    END IF;

    -- First what no waiting mends, and how large a slice may be.
    FOR s IN
        SELECT p.scope_kind, p.requests_per_minute, p.tokens_per_minute, st.num_queued,
            l.month_tokens, l.month_cost_micro, l.slots
        FROM limit_state AS st JOIN limit_policy AS p USING (scope_id)
        CROSS JOIN LATERAL limit_left(st, p, v_now) AS l
        WHERE st.scope_id = ANY (v_scope_ids) ORDER BY p.scope_kind
    LOOP
        v_is_rated := v_is_rated OR s.requests_per_minute IS NOT NULL
            OR s.tokens_per_minute IS NOT NULL;
        v_is_busy := v_is_busy OR s.slots <= 0 OR s.slots IS NOT NULL AND s.num_queued > 0;
        v_room := limit_room(p_completion_tokens, p_prompt_tokens, s.tokens_per_minute, NULL,
            0, 0);
        IF v_room < 1 THEN
            v_answer := ROW ('refused', 0, 'tokens', s.scope_kind, NULL);
            EXIT;
        END IF;
        v_grant := least(v_grant, v_room);
        v_room := limit_room(p_completion_tokens, p_prompt_tokens, s.month_tokens, NULL, 0, 0);
        IF v_room < 1 THEN
            v_answer := ROW ('refused', 0, 'monthly_tokens', s.scope_kind, NULL);
            EXIT;
        END IF;
        v_grant := least(v_grant, v_room);
        v_room := limit_room(p_completion_tokens, p_prompt_tokens, NULL,
            s.month_cost_micro, p_prompt_price, p_completion_price);
        IF v_room < 1 THEN
            v_answer := ROW ('refused', 0, 'monthly_cost', s.scope_kind, NULL);
            EXIT;
        END IF;
        v_grant := least(v_grant, v_room);
    END LOOP;

    -- Then the rates; the longest wait is the true one.
    IF v_answer.state IS NULL AND v_is_rated THEN
        FOR s IN
            SELECT w.scope_kind, w.refused_by, w.wait_us
            FROM limit_state AS st JOIN limit_policy AS p USING (scope_id)
            CROSS JOIN LATERAL limit_left(st, p, v_now) AS l
            CROSS JOIN LATERAL (VALUES
                (p.scope_kind, 'requests',
                    (60000000 - l.requests + p.requests_per_minute - 1) / p.requests_per_minute),
                (p.scope_kind, 'tokens',
                    ((p_prompt_tokens + v_grant) * 60000000 - l.tokens + p.tokens_per_minute - 1)
                    / p.tokens_per_minute)
            ) AS w (scope_kind, refused_by, wait_us)
            WHERE st.scope_id = ANY (v_scope_ids) AND w.wait_us > 0
            ORDER BY w.wait_us DESC, p.scope_kind, w.refused_by LIMIT 1
        LOOP
            v_answer := ROW ('refused', 0, s.refused_by, s.scope_kind, s.wait_us);
        END LOOP;
    END IF;

    -- Then the slots. Leases that ran out hold none, whether or not they are cleared away yet.
    -- Of one key, who came first goes first; keys must not wait for each other's own limits.
    IF v_answer.state IS NULL AND v_is_busy THEN
        FOR s IN
            SELECT p.*, st.num_running, st.num_queued
            FROM limit_state AS st JOIN limit_policy AS p USING (scope_id)
            WHERE st.scope_id = ANY (v_scope_ids) AND p.max_concurrent IS NOT NULL
            ORDER BY p.scope_kind
        LOOP
            v_full := s.num_running >= s.max_concurrent AND s.num_running - (
                SELECT count(*) FROM reservation AS r
                WHERE r.expires_at <= v_now AND r.state = 'running'
                    AND s.scope_id = ANY (r.scope_ids)
            ) >= s.max_concurrent;
            v_full := v_full OR s.num_queued > 0 AND EXISTS (
                SELECT 1 FROM reservation AS r
                WHERE r.tenant_id = p_tenant_id AND r.state = 'queued'
                    AND r.key_id = p_key_id AND r.request_id <> p_request_id
                    AND r.expires_at > v_now
                    AND (r.created_at, r.request_id)
                        < (coalesce(v_old.created_at, v_now), p_request_id)
            );
            IF v_full THEN
                v_answer := ROW ('refused', 0, 'concurrent', s.scope_kind, 1000000);
                v_queue := v_queue AND (v_old.state = 'queued' OR s.num_queued - (
                    SELECT count(*) FROM reservation AS r
                    WHERE r.expires_at <= v_now AND r.state = 'queued'
                        AND s.scope_id = ANY (r.scope_ids)
                ) < coalesce(s.max_queued, 0));
            END IF;
        END LOOP;
        IF v_answer.state = 'refused' AND v_queue THEN
            v_answer.state := 'queued';
        END IF;
    ELSIF v_old.state = 'queued' AND v_answer.wait_us IS NOT NULL THEN
        v_answer.state := 'queued';
    END IF;

    IF v_answer.state IS NULL THEN
        v_answer.state := 'running';
        v_answer.completion_tokens := v_grant;
        PERFORM limit_add_same(v_scope_ids, 1, p_prompt_tokens + v_grant,
            limit_cost(p_prompt_tokens, v_grant, p_prompt_price, p_completion_price), 1,
            CASE WHEN v_old.state = 'queued' THEN -1 ELSE 0 END, v_now);
    ELSIF v_answer.state = 'queued' AND v_old.state IS NULL THEN
        PERFORM limit_add_same(v_scope_ids, 0, 0, 0, 0, 1, v_now);
    ELSIF v_answer.state = 'refused' AND v_old.state = 'queued' THEN
        DELETE FROM reservation WHERE request_id = p_request_id;
        PERFORM limit_add_same(v_scope_ids, 0, 0, 0, 0, -1, v_now);
    END IF;
    IF v_answer.state <> 'refused' THEN
        INSERT INTO reservation (
            request_id, tenant_id, key_id, scope_ids, state, model, owner, month,
            prompt_tokens, completion_tokens, prompt_price, completion_price, created_at,
            expires_at, endpoint
        )
        VALUES (
            p_request_id, p_tenant_id, p_key_id, v_scope_ids, v_answer.state, p_model, p_owner,
            v_month, p_prompt_tokens,
            CASE WHEN v_answer.state = 'running' THEN v_grant ELSE 0 END,
            p_prompt_price, p_completion_price, v_now, v_now + p_lease,
            p_endpoint
        )
        ON CONFLICT (request_id) DO UPDATE SET
            state = excluded.state, month = excluded.month,
            completion_tokens = excluded.completion_tokens, expires_at = excluded.expires_at
        WHERE reservation.tenant_id = excluded.tenant_id;
    END IF;
    RETURN quota_windows(v_answer, v_scope_ids, v_now);
END
$$;
