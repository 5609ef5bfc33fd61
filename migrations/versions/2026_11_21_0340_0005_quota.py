"""Reserve, extend, settle: each is one function, and so one statement and one transaction.

All of them lock in one order: the reservation, the ledger's rows, then the scopes by id.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_RESERVE = (
    """
    CREATE TYPE quota_answer AS (
        state              text,    -- running | queued | refused
        completion_tokens  bigint,  -- held for the completion
        refused_by         text,    -- a tenants.limits.LimitName
        scope_kind         text,
        wait_us            bigint,  -- until it is worth trying again; null: waiting is in vain
        limit_requests     bigint, remaining_requests bigint, reset_requests_us bigint,
        limit_tokens       bigint, remaining_tokens   bigint, reset_tokens_us   bigint
    )
    """,
    # The windows of the scopes with the least left, after everything.
    """
    CREATE FUNCTION quota_windows(p_answer quota_answer, p_scope_ids uuid[], p_now timestamptz)
    RETURNS quota_answer LANGUAGE plpgsql AS $$
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
    $$
    """,
    """
    CREATE FUNCTION quota_reserve(
        p_request_id uuid, p_tenant_id uuid, p_project_id uuid, p_key_id uuid, p_model text,
        p_prompt_tokens bigint, p_completion_tokens bigint, p_prompt_price bigint,
        p_completion_price bigint, p_owner uuid, p_lease interval, p_now timestamptz
    ) RETURNS quota_answer LANGUAGE plpgsql AS $$
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
            SELECT p.*, st.num_running, st.num_queued,
                CASE WHEN st.month >= v_month THEN st.month_tokens ELSE 0 END AS month_tokens,
                CASE WHEN st.month >= v_month THEN st.month_cost_micro ELSE 0 END AS month_cost
            FROM limit_state AS st JOIN limit_policy AS p USING (scope_id)
            WHERE st.scope_id = ANY (v_scope_ids) ORDER BY p.scope_kind
        LOOP
            v_is_rated := v_is_rated OR s.requests_per_minute IS NOT NULL
                OR s.tokens_per_minute IS NOT NULL;
            v_is_busy := v_is_busy OR s.max_concurrent IS NOT NULL
                AND (s.num_running >= s.max_concurrent OR s.num_queued > 0);
            v_room := limit_room(p_completion_tokens, p_prompt_tokens, s.tokens_per_minute, NULL,
                0, 0);
            IF v_room < 1 THEN
                v_answer := ROW ('refused', 0, 'tokens', s.scope_kind, NULL);
                EXIT;
            END IF;
            v_grant := least(v_grant, v_room);
            v_room := limit_room(p_completion_tokens, p_prompt_tokens,
                s.monthly_tokens - s.month_tokens, NULL, 0, 0);
            IF v_room < 1 THEN
                v_answer := ROW ('refused', 0, 'monthly_tokens', s.scope_kind, NULL);
                EXIT;
            END IF;
            v_grant := least(v_grant, v_room);
            v_room := limit_room(p_completion_tokens, p_prompt_tokens, NULL,
                s.monthly_cost_micro - s.month_cost, p_prompt_price, p_completion_price);
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
                CROSS JOIN LATERAL (VALUES
                    (p.scope_kind, 'requests', (limit_refilled(st.requests_used,
                        p.requests_per_minute, st.refilled_at, v_now)
                        + 60000000 - p.requests_per_minute * 60000000
                        + p.requests_per_minute - 1) / p.requests_per_minute),
                    (p.scope_kind, 'tokens', (limit_refilled(st.tokens_used,
                        p.tokens_per_minute, st.refilled_at, v_now)
                        + (p_prompt_tokens + v_grant) * 60000000 - p.tokens_per_minute * 60000000
                        + p.tokens_per_minute - 1) / p.tokens_per_minute)
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
            PERFORM limit_add(v_scope_ids, v_now, v_month, 1, p_prompt_tokens + v_grant,
                limit_cost(p_prompt_tokens, v_grant, p_prompt_price, p_completion_price), 1,
                CASE WHEN v_old.state = 'queued' THEN -1 ELSE 0 END);
        ELSIF v_answer.state = 'queued' AND v_old.state IS NULL THEN
            PERFORM limit_add(v_scope_ids, v_now, v_month, 0, 0, 0, 0, 1);
        ELSIF v_answer.state = 'refused' AND v_old.state = 'queued' THEN
            DELETE FROM reservation WHERE request_id = p_request_id;
            PERFORM limit_add(v_scope_ids, v_now, v_month, 0, 0, 0, 0, -1);
        END IF;
        IF v_answer.state <> 'refused' THEN
            INSERT INTO reservation (
                request_id, tenant_id, key_id, scope_ids, state, model, owner, month,
                prompt_tokens, completion_tokens, prompt_price, completion_price, created_at,
                expires_at
            )
            VALUES (
                p_request_id, p_tenant_id, p_key_id, v_scope_ids, v_answer.state, p_model, p_owner,
                v_month, p_prompt_tokens,
                CASE WHEN v_answer.state = 'running' THEN v_grant ELSE 0 END,
                p_prompt_price, p_completion_price, v_now, v_now + p_lease
            )
            ON CONFLICT (request_id) DO UPDATE SET
                state = excluded.state, month = excluded.month,
                completion_tokens = excluded.completion_tokens, expires_at = excluded.expires_at
            WHERE reservation.tenant_id = excluded.tenant_id;
        END IF;
        RETURN quota_windows(v_answer, v_scope_ids, v_now);
    END
    $$
    """,
)

_REST = (
    # More tokens for a completion that runs; null when there is no such reservation (any more).
    """
    CREATE FUNCTION quota_extend(p_request_id uuid, p_tenant_id uuid, p_tokens bigint,
        p_generated integer, p_lease interval, p_now timestamptz)
    RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        v_row reservation;
        v_now timestamptz;
        v_grant bigint;
    BEGIN
        PERFORM set_config('synchronous_commit', 'off', true);
        SELECT * INTO v_row FROM reservation
        WHERE request_id = p_request_id AND tenant_id = p_tenant_id AND state = 'running'
        FOR UPDATE;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        PERFORM 1 FROM limit_state WHERE scope_id = ANY (v_row.scope_ids)
        ORDER BY scope_id FOR UPDATE;
        v_now := coalesce(p_now, clock_timestamp());
        SELECT greatest(0, least(p_tokens, min(limit_room(
            p_tokens, 0,
            p.monthly_tokens - CASE WHEN s.month >= limit_month(v_now) THEN s.month_tokens
                ELSE 0 END,
            p.monthly_cost_micro - CASE WHEN s.month >= limit_month(v_now)
                THEN s.month_cost_micro ELSE 0 END,
            0, v_row.completion_price))))
        INTO v_grant
        FROM limit_state AS s JOIN limit_policy AS p USING (scope_id)
        WHERE s.scope_id = ANY (v_row.scope_ids);
        -- The rates go into debt: a stream under way is not cut for them, the next one waits.
        PERFORM limit_add(v_row.scope_ids, v_now, v_row.month, 0, v_grant,
            limit_cost(v_row.prompt_tokens, v_row.completion_tokens + v_grant, v_row.prompt_price,
                v_row.completion_price)
            - limit_cost(v_row.prompt_tokens, v_row.completion_tokens, v_row.prompt_price,
                v_row.completion_price), 0, 0);
        UPDATE reservation SET
            completion_tokens = completion_tokens + v_grant,
            generated_tokens = greatest(generated_tokens, p_generated),
            expires_at = greatest(expires_at, v_now + p_lease)
        WHERE request_id = p_request_id;
        RETURN v_grant;
    END
    $$
    """,
    # Gives back what a reservation holds beyond what was used, and its slot.
    """
    CREATE FUNCTION quota_close(p_row reservation, p_tokens bigint, p_cost_micro bigint,
        p_now timestamptz)
    RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF p_row.state = 'queued' THEN
            PERFORM limit_apply(p_row.scope_ids, p_now, p_row.month, 0, p_tokens, p_cost_micro, 0,
                -1);
        ELSE
            PERFORM limit_apply(p_row.scope_ids, p_now, p_row.month, 0,
                p_tokens - p_row.prompt_tokens - p_row.completion_tokens,
                p_cost_micro - limit_cost(p_row.prompt_tokens, p_row.completion_tokens,
                    p_row.prompt_price, p_row.completion_price), -1, 0);
        END IF;
    END
    $$
    """,
    # The end of a request: ledger, sums and limits in one transaction; false when it had ended.
    """
    CREATE FUNCTION quota_settle(
        p_request_id uuid, p_tenant_id uuid, p_key_id uuid, p_model text, p_status text,
        p_prompt_tokens integer, p_cached_tokens integer, p_completion_tokens integer,
        p_created_at timestamptz, p_end_user text, p_cost_micro bigint, p_now timestamptz
    ) RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        v_row reservation;
        v_written boolean;
    BEGIN
        DELETE FROM reservation WHERE request_id = p_request_id AND tenant_id = p_tenant_id
        RETURNING * INTO v_row;
        v_written := ledger_append(p_request_id, p_tenant_id, p_key_id, p_model, p_status,
            p_prompt_tokens, p_cached_tokens, p_completion_tokens, p_created_at, p_end_user,
            p_cost_micro);
        IF v_row.request_id IS NOT NULL THEN
            PERFORM quota_close(v_row,
                CASE WHEN v_written THEN p_prompt_tokens::bigint + p_completion_tokens ELSE 0 END,
                CASE WHEN v_written THEN p_cost_micro ELSE 0 END, p_now);
        ELSIF v_written THEN
            -- Never reserved, or the reservation was lost: used is used.
            PERFORM limit_apply(
                ARRAY (SELECT unnest(ARRAY[id, project_id, tenant_id]) FROM api_key
                    WHERE id = p_key_id),
                p_now, limit_month(coalesce(p_now, clock_timestamp())), 1,
                p_prompt_tokens::bigint + p_completion_tokens, p_cost_micro, 0, 0);
        END IF;
        RETURN v_written;
    END
    $$
    """,
    # Undo a reservation that came to nothing: it leaves no row in the ledger.
    """
    CREATE FUNCTION quota_release(p_request_id uuid, p_tenant_id uuid, p_now timestamptz)
    RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        v_row reservation;
    BEGIN
        PERFORM set_config('synchronous_commit', 'off', true);
        DELETE FROM reservation WHERE request_id = p_request_id AND tenant_id = p_tenant_id
        RETURNING * INTO v_row;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        PERFORM quota_close(v_row, 0, 0, p_now);
        RETURN true;
    END
    $$
    """,
    # One reservation whose owner stopped renewing it; null when there is none. One per
    # transaction, so that no two reapers can wait for each other's scopes.
    """
    CREATE FUNCTION quota_reap(p_now timestamptz)
    RETURNS uuid LANGUAGE plpgsql AS $$
    DECLARE
        v_row reservation;
        v_now timestamptz := coalesce(p_now, clock_timestamp());
    BEGIN
        SELECT * INTO v_row FROM reservation WHERE expires_at <= v_now
        ORDER BY expires_at LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        IF v_row.state = 'queued' THEN
            PERFORM quota_release(v_row.request_id, v_row.tenant_id, p_now);
        ELSE
            PERFORM quota_settle(v_row.request_id, v_row.tenant_id, v_row.key_id, v_row.model,
                'error', v_row.prompt_tokens, 0, v_row.generated_tokens, v_now, NULL,
                limit_cost(v_row.prompt_tokens, v_row.generated_tokens, v_row.prompt_price,
                    v_row.completion_price), p_now);
        END IF;
        RETURN v_row.request_id;
    END
    $$
    """,
)

_DOWN = (
    "DROP FUNCTION quota_reap(timestamptz)",
    "DROP FUNCTION quota_release(uuid, uuid, timestamptz)",
    "DROP FUNCTION quota_settle(uuid, uuid, uuid, text, text, integer, integer, integer, "
    "timestamptz, text, bigint, timestamptz)",
    "DROP FUNCTION quota_close(reservation, bigint, bigint, timestamptz)",
    "DROP FUNCTION quota_extend(uuid, uuid, bigint, integer, interval, timestamptz)",
    "DROP FUNCTION quota_reserve(uuid, uuid, uuid, uuid, text, bigint, bigint, bigint, bigint, "
    "uuid, interval, timestamptz)",
    "DROP FUNCTION quota_windows(quota_answer, uuid[], timestamptz)",
    "DROP TYPE quota_answer",
)


def upgrade() -> None:
    for statement in (*_RESERVE, *_REST):
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
