-- The sum of all migrations, as `python -m migrations.schema` writes it. Only people and a test
-- read this file: databases are made by `sluice migrate`. The months of the ledger are left out.

CREATE TYPE public.quota_answer AS (
	state text,
	completion_tokens bigint,
	refused_by text,
	scope_kind text,
	wait_us bigint,
	limit_requests bigint,
	remaining_requests bigint,
	reset_requests_us bigint,
	limit_tokens bigint,
	remaining_tokens bigint,
	reset_tokens_us bigint
);

CREATE TYPE public.quota_asked AS (
	request_id uuid,
	tenant_id uuid,
	project_id uuid,
	key_id uuid,
	model text,
	prompt_tokens bigint,
	completion_tokens bigint,
	prompt_price bigint,
	completion_price bigint,
	owner uuid,
	lease interval
);

CREATE TYPE public.quota_more AS (
	request_id uuid,
	tenant_id uuid,
	tokens bigint,
	generated integer
);

CREATE FUNCTION public.adapters_of(p_tenant_id uuid) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$
    BEGIN
        PERFORM sluice_enter(p_tenant_id);
        RETURN (
            SELECT jsonb_agg(to_jsonb(a) ORDER BY a.name COLLATE "C")
            FROM adapter AS a WHERE a.tenant_id = p_tenant_id
        );
    END
    $$;

CREATE FUNCTION public.api_key_gets_project() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
    BEGIN
        IF NEW.project_id IS NULL THEN
            SELECT id INTO NEW.project_id
            FROM project WHERE tenant_id = NEW.tenant_id AND is_default;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'there is no tenant %', NEW.tenant_id USING
                    ERRCODE = 'foreign_key_violation', CONSTRAINT = 'api_key_tenant_id_fkey';
            END IF;
        END IF;
        RETURN NEW;
    END
    $$;

CREATE FUNCTION public.audit_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
    DECLARE
        -- When a key was used last is no change of it, and its hash is nobody's to read.
        v_before jsonb := CASE WHEN TG_OP <> 'INSERT' THEN
            to_jsonb(OLD) - ARRAY['key_hash', 'last_used_at'] END;
        v_after jsonb := CASE WHEN TG_OP <> 'DELETE' THEN
            to_jsonb(NEW) - ARRAY['key_hash', 'last_used_at'] END;
        v_row jsonb := coalesce(v_after, v_before);
        v_verb text := CASE
            WHEN TG_OP = 'INSERT' THEN 'create'
            WHEN TG_OP = 'DELETE' THEN 'delete'
            WHEN v_before ->> 'revoked_at' IS NULL AND v_after ->> 'revoked_at' IS NOT NULL
                THEN 'revoke'
            WHEN v_before -> 'revoke_at' <> v_after -> 'revoke_at' THEN 'rotate'
            ELSE 'update'
        END;
    BEGIN
        IF v_before IS DISTINCT FROM v_after THEN
            PERFORM audit_record(
                coalesce(v_row ->> 'tenant_id', v_row ->> 'id')::uuid,
                TG_ARGV[0] || '.' || v_verb,
                coalesce(v_row ->> 'public_id', v_row ->> 'scope_id', v_row ->> 'id'),
                v_before, v_after
            );
        END IF;
        RETURN NULL;
    END
    $$;

CREATE FUNCTION public.audit_log_is_append_only() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
    BEGIN
        RAISE EXCEPTION 'audit_log is append-only' USING ERRCODE = 'restrict_violation';
    END
    $$;

CREATE FUNCTION public.audit_record(p_tenant_id uuid, p_action text, p_object_id text, p_before jsonb, p_after jsonb) RETURNS void
    LANGUAGE sql
    AS $$
        INSERT INTO audit_log (tenant_id, actor, action, object_id, before, after)
        VALUES (
            p_tenant_id,
            coalesce(nullif(current_setting('sluice.actor', true), ''), session_user),
            p_action, p_object_id, p_before, p_after
        )
    $$;

CREATE FUNCTION public.claims_find(p_key_hashes bytea[], p_tenant_ids uuid[]) RETURNS TABLE(tenant_id uuid, key_hash bytea, body_hash bytea, answer_id text)
    LANGUAGE plpgsql
    AS $$
    BEGIN
        PERFORM sluice_enter_all(p_tenant_ids);
        RETURN QUERY
            SELECT k.tenant_id, k.key_hash, k.body_hash, k.answer_id
            FROM unnest(p_key_hashes, p_tenant_ids) AS wanted (key_hash, tenant_id)
            JOIN idempotency_key AS k USING (tenant_id, key_hash)
            WHERE k.expires_at > now();
    END
    $$;

CREATE FUNCTION public.key_bootstrap(p_tenant_id uuid, p_tenant_name text, p_key_id uuid, p_public_id text, p_key_hash bytea, p_name text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
    DECLARE
        v_tenant_id uuid;
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtext('sluice first admin key'));
        IF EXISTS (SELECT FROM api_key WHERE 'admin' = ANY (scopes)) THEN
            RETURN false;
        END IF;
        INSERT INTO tenant (id, name) VALUES (p_tenant_id, p_tenant_name)
        ON CONFLICT (name) DO NOTHING;
        SELECT id INTO STRICT v_tenant_id FROM tenant WHERE name = p_tenant_name;
        INSERT INTO api_key (id, tenant_id, public_id, key_hash, name, scopes)
        VALUES (p_key_id, v_tenant_id, p_public_id, p_key_hash, p_name, ARRAY['admin']);
        RETURN true;
    END
    $$;

CREATE FUNCTION public.key_lookup(p_public_id text) RETURNS TABLE(id uuid, tenant_id uuid, project_id uuid, public_id text, name text, scopes text[], allowed_models text[], model_aliases jsonb, created_at timestamp with time zone, expires_at timestamp with time zone, revoked_at timestamp with time zone, revoke_at timestamp with time zone, last_used_at timestamp with time zone, replaces_key_id uuid, key_hash bytea, tenant_name text, weight double precision, priority smallint, tenant_created_at timestamp with time zone, disabled_at timestamp with time zone, policies jsonb)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
        SELECT
            k.id, k.tenant_id, k.project_id, k.public_id, k.name, k.scopes, k.allowed_models,
            k.model_aliases, k.created_at, k.expires_at, k.revoked_at, k.revoke_at,
            k.last_used_at, k.replaces_key_id, k.key_hash,
            t.name, t.weight, t.priority, t.created_at, t.disabled_at,
            (
                SELECT jsonb_agg(
                    jsonb_build_object(
                        'scope_kind', l.scope_kind,
                        'scope_id', l.scope_id,
                        'limits', jsonb_strip_nulls(to_jsonb(l)) - ARRAY['scope_id', 'scope_kind', 'tenant_id']
                    )
                    ORDER BY array_position(ARRAY['key', 'project', 'tenant'], l.scope_kind)
                )
                FROM limit_policy AS l
                WHERE l.scope_id IN (k.id, k.project_id, k.tenant_id)
            )
        FROM api_key AS k
        JOIN tenant AS t ON t.id = k.tenant_id
        WHERE k.public_id = p_public_id
    $$;

CREATE FUNCTION public.ledger_append(p_request_id uuid, p_tenant_id uuid, p_key_id uuid, p_model text, p_status text, p_prompt_tokens integer, p_cached_tokens integer, p_completion_tokens integer, p_created_at timestamp with time zone, p_end_user text, p_cost_micro bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
    BEGIN
        INSERT INTO usage_seen (request_id, tenant_id, created_at)
        VALUES (p_request_id, p_tenant_id, p_created_at)
        ON CONFLICT (request_id) DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        INSERT INTO usage_event (
            request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
            completion_tokens, created_at, end_user, cost_micro
        )
        VALUES (
            p_request_id, p_tenant_id, p_key_id, p_model, p_status, p_prompt_tokens,
            p_cached_tokens, p_completion_tokens, p_created_at, p_end_user, p_cost_micro
        );
        INSERT INTO usage_rollup AS r (
            tenant_id, key_id, model, hour, requests, prompt_tokens, cached_tokens,
            completion_tokens, cost_micro
        )
        VALUES (
            p_tenant_id, p_key_id, p_model, date_trunc('hour', p_created_at, 'UTC'), 1,
            p_prompt_tokens, p_cached_tokens, p_completion_tokens, p_cost_micro
        )
        ON CONFLICT (tenant_id, hour, key_id, model) DO UPDATE SET
            requests = r.requests + 1,
            prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = r.cached_tokens + excluded.cached_tokens,
            completion_tokens = r.completion_tokens + excluded.completion_tokens,
            cost_micro = r.cost_micro + excluded.cost_micro;
        RETURN true;
    END
    $$;

CREATE FUNCTION public.limit_add(p_scope_ids uuid[], p_now timestamp with time zone, p_month date, p_requests integer, p_tokens bigint, p_cost_micro bigint, p_running integer, p_queued integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
    BEGIN
        UPDATE limit_state AS s SET
            requests_used = limit_charged(limit_refilled(
                s.requests_used, p.requests_per_minute, s.refilled_at, p_now), CASE
                WHEN p.requests_per_minute IS NOT NULL THEN p_requests ELSE 0 END),
            tokens_used = limit_charged(limit_refilled(
                s.tokens_used, p.tokens_per_minute, s.refilled_at, p_now), CASE
                WHEN p.tokens_per_minute IS NOT NULL THEN p_tokens ELSE 0 END),
            refilled_at = greatest(s.refilled_at, p_now),
            num_running = greatest(0, s.num_running + p_running),
            num_queued = greatest(0, s.num_queued + p_queued),
            month = greatest(s.month, limit_month(p_now)),
            -- What was held in a month that is over is not given back to this one.
            month_tokens = greatest(0,
                CASE WHEN s.month >= limit_month(p_now) THEN s.month_tokens ELSE 0 END
                + CASE WHEN p_tokens > 0 OR p_month = limit_month(p_now)
                    THEN p_tokens ELSE 0 END),
            month_cost_micro = greatest(0,
                CASE WHEN s.month >= limit_month(p_now) THEN s.month_cost_micro ELSE 0 END
                + CASE WHEN p_cost_micro > 0 OR p_month = limit_month(p_now)
                    THEN p_cost_micro ELSE 0 END)
        FROM limit_policy AS p
        WHERE s.scope_id = ANY (p_scope_ids) AND p.scope_id = s.scope_id;
    END
    $$;

CREATE FUNCTION public.limit_apply(p_scope_ids uuid[], p_now timestamp with time zone, p_month date, p_requests integer, p_tokens bigint, p_cost_micro bigint, p_running integer, p_queued integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
    BEGIN
        PERFORM 1 FROM limit_state WHERE scope_id = ANY (p_scope_ids)
        ORDER BY scope_id FOR UPDATE;
        PERFORM limit_add(p_scope_ids, coalesce(p_now, clock_timestamp()), p_month, p_requests,
            p_tokens, p_cost_micro, p_running, p_queued);
    END
    $$;

CREATE FUNCTION public.limit_apply_many(p_scope_ids uuid[], p_requests bigint[], p_tokens bigint[], p_month_tokens bigint[], p_costs bigint[], p_running bigint[], p_queued bigint[], p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
    DECLARE
        v_now timestamptz;
    BEGIN
        PERFORM 1 FROM limit_state WHERE scope_id = ANY (p_scope_ids)
        ORDER BY scope_id FOR UPDATE;
        v_now := coalesce(p_now, clock_timestamp());
        UPDATE limit_state AS s SET
            requests_used = limit_charged(limit_refilled(
                s.requests_used, p.requests_per_minute, s.refilled_at, v_now), CASE
                WHEN p.requests_per_minute IS NOT NULL THEN d.requests ELSE 0 END),
            tokens_used = limit_charged(limit_refilled(
                s.tokens_used, p.tokens_per_minute, s.refilled_at, v_now), CASE
                WHEN p.tokens_per_minute IS NOT NULL THEN d.tokens ELSE 0 END),
            refilled_at = greatest(s.refilled_at, v_now),
            num_running = greatest(0, s.num_running + d.running),
            num_queued = greatest(0, s.num_queued + d.queued),
            month = greatest(s.month, limit_month(v_now)),
            month_tokens = greatest(0, d.month_tokens
                + CASE WHEN s.month >= limit_month(v_now) THEN s.month_tokens ELSE 0 END),
            month_cost_micro = greatest(0, d.cost
                + CASE WHEN s.month >= limit_month(v_now) THEN s.month_cost_micro ELSE 0 END)
        FROM limit_policy AS p, unnest(p_scope_ids, p_requests, p_tokens, p_month_tokens, p_costs,
            p_running, p_queued)
            AS d (scope_id, requests, tokens, month_tokens, cost, running, queued)
        WHERE s.scope_id = d.scope_id AND p.scope_id = s.scope_id;
    END
    $$;

CREATE FUNCTION public.limit_charged(p_used bigint, p_amount bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
        SELECT least(4000000000000000000, greatest(0, p_used + p_amount * 60000000))
    $$;

CREATE FUNCTION public.limit_cost(p_prompt bigint, p_completion bigint, p_prompt_price bigint, p_completion_price bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
        SELECT (p_prompt * p_prompt_price + p_completion * p_completion_price + 999999) / 1000000
    $$;

CREATE FUNCTION public.limit_month(p_now timestamp with time zone) RETURNS date
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
        SELECT date_trunc('month', p_now AT TIME ZONE 'UTC')::date
    $$;

CREATE FUNCTION public.limit_put(p_tenant_id uuid, p_scope_kind text, p_scope_id uuid, p_requests_per_minute bigint, p_tokens_per_minute bigint, p_max_concurrent integer, p_max_queued integer, p_monthly_tokens bigint, p_monthly_cost_micro bigint, p_priority smallint, p_weight double precision, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE sql
    AS $$
        SELECT limit_put(p_tenant_id, p_scope_kind, p_scope_id, p_requests_per_minute,
            p_tokens_per_minute, p_max_concurrent, p_max_queued, p_monthly_tokens,
            p_monthly_cost_micro, p_priority, p_weight,
            (SELECT max_cached_blocks FROM limit_policy WHERE scope_id = p_scope_id), p_now)
    $$;

CREATE FUNCTION public.limit_put(p_tenant_id uuid, p_scope_kind text, p_scope_id uuid, p_requests_per_minute bigint, p_tokens_per_minute bigint, p_max_concurrent integer, p_max_queued integer, p_monthly_tokens bigint, p_monthly_cost_micro bigint, p_priority smallint, p_weight double precision, p_max_cached_blocks integer, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
    BEGIN
        PERFORM 1 FROM (
            SELECT 'tenant' AS kind, id FROM tenant WHERE id = p_tenant_id
            UNION ALL
            SELECT 'project', id FROM project WHERE tenant_id = p_tenant_id
            UNION ALL
            SELECT 'key', id FROM api_key WHERE tenant_id = p_tenant_id
        ) AS scope
        WHERE scope.kind = p_scope_kind AND scope.id = p_scope_id;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        PERFORM limit_apply(ARRAY[p_scope_id], p_now,
            limit_month(coalesce(p_now, clock_timestamp())), 0, 0, 0, 0, 0);
        INSERT INTO limit_policy (
            scope_id, scope_kind, tenant_id, requests_per_minute, tokens_per_minute,
            max_concurrent, max_queued, monthly_tokens, monthly_cost_micro, priority, weight,
            max_cached_blocks
        )
        VALUES (
            p_scope_id, p_scope_kind, p_tenant_id, p_requests_per_minute, p_tokens_per_minute,
            p_max_concurrent, p_max_queued, p_monthly_tokens, p_monthly_cost_micro, p_priority,
            p_weight, p_max_cached_blocks
        )
        ON CONFLICT (scope_id) DO UPDATE SET
            requests_per_minute = excluded.requests_per_minute,
            tokens_per_minute = excluded.tokens_per_minute,
            max_concurrent = excluded.max_concurrent,
            max_queued = excluded.max_queued,
            monthly_tokens = excluded.monthly_tokens,
            monthly_cost_micro = excluded.monthly_cost_micro,
            priority = excluded.priority,
            weight = excluded.weight,
            max_cached_blocks = excluded.max_cached_blocks;
        INSERT INTO limit_state (scope_id, tenant_id) VALUES (p_scope_id, p_tenant_id)
        ON CONFLICT (scope_id) DO NOTHING;
        RETURN true;
    END
    $$;

CREATE FUNCTION public.limit_refilled(p_used bigint, p_per_minute bigint, p_since timestamp with time zone, p_now timestamp with time zone) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
        SELECT CASE
            WHEN p_used = 0 OR p_per_minute IS NULL OR p_since = '-infinity' THEN 0
            ELSE greatest(0, p_used - p_per_minute * least(
                p_used / p_per_minute + 1,
                greatest(0, (extract(epoch FROM p_now - p_since) * 1000000)::bigint)
            ))
        END
    $$;

CREATE FUNCTION public.limit_room(p_wanted bigint, p_prompt bigint, p_tokens_left bigint, p_cost_left bigint, p_prompt_price bigint, p_completion_price bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
        SELECT least(
            p_wanted,
            p_tokens_left - p_prompt,
            CASE
                WHEN p_cost_left IS NULL THEN NULL
                WHEN greatest(0, p_cost_left)::numeric * 1000000 < p_prompt * p_prompt_price THEN 0
                WHEN p_completion_price > 0 THEN div(
                    greatest(0, p_cost_left)::numeric * 1000000 - p_prompt * p_prompt_price,
                    p_completion_price
                )
            END
        )::bigint
    $$;

CREATE FUNCTION public.notify_adapter_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
    BEGIN
        PERFORM pg_notify('sluice_changes', 'tenant ' || coalesce(NEW.tenant_id, OLD.tenant_id));
        IF TG_OP = 'DELETE' THEN
            PERFORM pg_notify('sluice_changes', 'adapter ' || OLD.id);
        END IF;
        RETURN NULL;
    END
    $$;

CREATE FUNCTION public.notify_key_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
    BEGIN
        PERFORM pg_notify('sluice_changes', 'key ' || NEW.public_id);
        RETURN NULL;
    END
    $$;

CREATE FUNCTION public.notify_tenant_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
    BEGIN
        PERFORM pg_notify('sluice_changes',
            'tenant ' || (to_jsonb(NEW) ->> CASE TG_TABLE_NAME WHEN 'tenant' THEN 'id'
                ELSE 'tenant_id' END));
        RETURN NULL;
    END
    $$;

CREATE TABLE public.reservation (
    request_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    key_id uuid NOT NULL,
    scope_ids uuid[] NOT NULL,
    state text NOT NULL,
    model text NOT NULL,
    owner uuid NOT NULL,
    month date NOT NULL,
    prompt_tokens integer NOT NULL,
    completion_tokens integer NOT NULL,
    generated_tokens integer DEFAULT 0 NOT NULL,
    prompt_price bigint NOT NULL,
    completion_price bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT reservation_state_check CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text]))),
    CONSTRAINT reservation_tokens_check CHECK (((prompt_tokens >= 0) AND (completion_tokens >= 0) AND (generated_tokens >= 0)))
)
WITH (fillfactor='70');

ALTER TABLE ONLY public.reservation FORCE ROW LEVEL SECURITY;

CREATE FUNCTION public.quota_close(p_row public.reservation, p_tokens bigint, p_cost_micro bigint, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
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
    $$;

CREATE FUNCTION public.quota_extend(p_request_id uuid, p_tenant_id uuid, p_tokens bigint, p_generated integer, p_lease interval, p_now timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
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
    $$;

CREATE FUNCTION public.quota_extend_many(p_request_ids uuid[], p_tenant_ids uuid[], p_tokens bigint[], p_generated integer[], p_lease interval, p_now timestamp with time zone) RETURNS SETOF bigint
    LANGUAGE plpgsql
    AS $$
    DECLARE
        v_asked quota_more[];
        v_block quota_more[];
        v_lacking uuid[];
        v_granted uuid[];
        v_now timestamptz;
        d record;
    BEGIN
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM sluice_enter_all(p_tenant_ids);
        PERFORM 1 FROM reservation WHERE request_id = ANY (p_request_ids)
        ORDER BY request_id FOR UPDATE;
        PERFORM 1 FROM limit_state
        WHERE scope_id = ANY (ARRAY (
            SELECT unnest(scope_ids) FROM reservation WHERE request_id = ANY (p_request_ids)
        ))
        ORDER BY scope_id FOR UPDATE;
        v_now := coalesce(p_now, clock_timestamp());
        SELECT array_agg(a::quota_more) INTO v_asked
        FROM unnest(p_request_ids, p_tenant_ids, p_tokens, p_generated)
            AS a (request_id, tenant_id, tokens, generated);
        v_lacking := ARRAY (
            SELECT n.tenant_id
            FROM quota_more_needs(v_asked) AS n
            JOIN limit_state AS s USING (scope_id) JOIN limit_policy AS p USING (scope_id)
            WHERE n.tokens > p.monthly_tokens
                    - CASE WHEN s.month >= limit_month(v_now) THEN s.month_tokens ELSE 0 END
                OR n.spent > p.monthly_cost_micro
                    - CASE WHEN s.month >= limit_month(v_now) THEN s.month_cost_micro ELSE 0 END
        );
        v_block := ARRAY (
            SELECT a::quota_more FROM unnest(v_asked) AS a WHERE a.tenant_id <> ALL (v_lacking)
        );
        -- The rates go into debt: a stream under way is not cut for them, the next one waits.
        SELECT
            array_agg(scope_id) AS scope_ids, array_agg(tokens) AS tokens,
            array_agg(cost) AS costs, array_agg(0::bigint) AS none
        INTO d FROM quota_more_needs(v_block);
        IF d.scope_ids IS NOT NULL THEN
            PERFORM limit_apply_many(d.scope_ids, d.none, d.tokens, d.tokens, d.costs, d.none,
                d.none, p_now);
        END IF;
        WITH granted AS (
            UPDATE reservation AS r SET
                completion_tokens = r.completion_tokens + a.tokens,
                generated_tokens = greatest(r.generated_tokens, a.generated),
                expires_at = greatest(r.expires_at, v_now + p_lease)
            FROM unnest(v_block) AS a
            WHERE r.request_id = a.request_id AND r.tenant_id = a.tenant_id
                AND r.state = 'running'
            RETURNING r.request_id
        )
        SELECT array_agg(request_id) INTO v_granted FROM granted;
        FOR i IN 1 .. cardinality(p_request_ids) LOOP
            IF p_tenant_ids[i] = ANY (v_lacking) THEN
                RETURN NEXT quota_extend(p_request_ids[i], p_tenant_ids[i], p_tokens[i],
                    p_generated[i], p_lease, p_now);
            ELSIF p_request_ids[i] = ANY (v_granted) THEN
                RETURN NEXT p_tokens[i];
            ELSE
                RETURN NEXT NULL;
            END IF;
        END LOOP;
    END
    $$;

CREATE FUNCTION public.quota_follow_clock(p_lease interval, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
    DECLARE
        v_now timestamptz := coalesce(p_now, clock_timestamp());
        v_month date := limit_month(v_now);
    BEGIN
        PERFORM 1 FROM reservation WHERE expires_at > v_now + p_lease + interval '1 minute'
        ORDER BY request_id FOR UPDATE;
        UPDATE reservation SET expires_at = v_now + p_lease
        WHERE expires_at > v_now + p_lease + interval '1 minute';
        PERFORM 1 FROM limit_state
        WHERE refilled_at > v_now + interval '1 minute' OR month > v_month + interval '1 month'
        ORDER BY scope_id FOR UPDATE;
        UPDATE limit_state SET
            refilled_at = CASE WHEN refilled_at > v_now + interval '1 minute' THEN v_now
                ELSE refilled_at END,
            month = CASE WHEN month > v_month + interval '1 month' THEN v_month ELSE month END
        WHERE refilled_at > v_now + interval '1 minute' OR month > v_month + interval '1 month';
        UPDATE gateway_worker SET expires_at = v_now + p_lease
        WHERE expires_at > v_now + p_lease + interval '1 minute';
    END
    $$;

CREATE FUNCTION public.quota_lacking(p_asked public.quota_asked[], p_now timestamp with time zone) RETURNS uuid[]
    LANGUAGE sql STABLE
    AS $$
        SELECT ARRAY (
            SELECT n.tenant_id
            FROM quota_needs(p_asked) AS n
            JOIN limit_state AS s USING (scope_id) JOIN limit_policy AS p USING (scope_id)
            WHERE limit_refilled(s.requests_used, p.requests_per_minute, s.refilled_at, p_now)
                    + n.requests * 60000000::numeric > p.requests_per_minute * 60000000
                OR limit_refilled(s.tokens_used, p.tokens_per_minute, s.refilled_at, p_now)
                    + n.tokens * 60000000::numeric > p.tokens_per_minute * 60000000
                OR n.tokens > p.monthly_tokens
                    - CASE WHEN s.month >= limit_month(p_now) THEN s.month_tokens ELSE 0 END
                OR n.cost > p.monthly_cost_micro
                    - CASE WHEN s.month >= limit_month(p_now) THEN s.month_cost_micro ELSE 0 END
                OR s.num_running + n.requests > p.max_concurrent
                OR s.num_queued > 0
            UNION
            SELECT r.tenant_id FROM unnest(p_asked) AS a JOIN reservation AS r USING (request_id)
        )
    $$;

CREATE FUNCTION public.quota_more_needs(p_asked public.quota_more[]) RETURNS TABLE(scope_id uuid, tenant_id uuid, tokens bigint, cost bigint, spent numeric)
    LANGUAGE sql STABLE
    AS $$
        SELECT
            s.scope_id, r.tenant_id, sum(a.tokens)::bigint,
            sum(limit_cost(r.prompt_tokens, r.completion_tokens + a.tokens, r.prompt_price,
                r.completion_price)
            - limit_cost(r.prompt_tokens, r.completion_tokens, r.prompt_price,
                r.completion_price))::bigint,
            -- Alone, a request is granted tokens for whole prices; what it is then charged is
            -- rounded, by less than 1.
            sum(a.tokens * r.completion_price::numeric / 1000000 + 1)
        FROM unnest(p_asked) AS a
        JOIN reservation AS r ON r.request_id = a.request_id AND r.tenant_id = a.tenant_id
            AND r.state = 'running'
        CROSS JOIN LATERAL unnest(r.scope_ids) AS s (scope_id)
        GROUP BY s.scope_id, r.tenant_id
    $$;

CREATE FUNCTION public.quota_needs(p_asked public.quota_asked[]) RETURNS TABLE(scope_id uuid, tenant_id uuid, requests bigint, tokens bigint, cost bigint)
    LANGUAGE sql STABLE
    AS $$
        SELECT
            s.scope_id, s.tenant_id, count(*), sum(a.prompt_tokens + a.completion_tokens)::bigint,
            sum(limit_cost(a.prompt_tokens, a.completion_tokens, a.prompt_price,
                a.completion_price))::bigint
        FROM unnest(p_asked) AS a
        JOIN limit_state AS s ON s.tenant_id = a.tenant_id
            AND s.scope_id IN (a.tenant_id, a.project_id, a.key_id)
        GROUP BY s.scope_id, s.tenant_id
    $$;

CREATE FUNCTION public.quota_reap(p_now timestamp with time zone) RETURNS uuid
    LANGUAGE sql
    AS $$
        SELECT quota_reap('0', p_now)
    $$;

CREATE FUNCTION public.quota_reap(p_patience interval, p_now timestamp with time zone) RETURNS uuid
    LANGUAGE plpgsql
    AS $$
    DECLARE
        v_row reservation;
        v_now timestamptz := coalesce(p_now, clock_timestamp());
    BEGIN
        SELECT * INTO v_row FROM reservation
        WHERE expires_at <= v_now AND (state = 'queued' OR expires_at <= v_now - p_patience)
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
    $$;

CREATE FUNCTION public.quota_release(p_request_id uuid, p_tenant_id uuid, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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
    $$;

CREATE FUNCTION public.quota_reserve(p_request_id uuid, p_tenant_id uuid, p_project_id uuid, p_key_id uuid, p_model text, p_prompt_tokens bigint, p_completion_tokens bigint, p_prompt_price bigint, p_completion_price bigint, p_owner uuid, p_lease interval, p_now timestamp with time zone) RETURNS public.quota_answer
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
    $$;

CREATE FUNCTION public.quota_reserve_many(p_request_ids uuid[], p_tenant_ids uuid[], p_project_ids uuid[], p_key_ids uuid[], p_models text[], p_prompt_tokens bigint[], p_completion_tokens bigint[], p_prompt_prices bigint[], p_completion_prices bigint[], p_owners uuid[], p_leases interval[], p_now timestamp with time zone) RETURNS SETOF public.quota_answer
    LANGUAGE plpgsql
    AS $$
    DECLARE
        v_asked quota_asked[];
        v_block quota_asked[];
        v_lacking uuid[];
        v_taken jsonb;
        v_answer quota_answer;
        v_now timestamptz;
    BEGIN
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM sluice_enter_all(p_tenant_ids);
        PERFORM 1 FROM reservation WHERE request_id = ANY (p_request_ids)
        ORDER BY request_id FOR UPDATE;
        PERFORM 1 FROM limit_state
        WHERE scope_id = ANY (p_tenant_ids || p_project_ids || p_key_ids)
        ORDER BY scope_id FOR UPDATE;
        v_now := coalesce(p_now, clock_timestamp());
        SELECT array_agg(a::quota_asked ORDER BY a.request_id) INTO v_asked
        FROM unnest(p_request_ids, p_tenant_ids, p_project_ids, p_key_ids, p_models,
            p_prompt_tokens, p_completion_tokens, p_prompt_prices, p_completion_prices, p_owners,
            p_leases) AS a (request_id, tenant_id, project_id, key_id, model, prompt_tokens,
            completion_tokens, prompt_price, completion_price, owner, lease);
        v_lacking := quota_lacking(v_asked, v_now);
        v_block := ARRAY (
            SELECT a::quota_asked FROM unnest(v_asked) AS a WHERE a.tenant_id <> ALL (v_lacking)
        );
        PERFORM quota_take(v_block, p_now);
        -- By request; the windows of each set of scopes are looked at once.
        WITH taken AS (
            SELECT r.request_id, r.scope_ids
            FROM unnest(v_block) AS a JOIN reservation AS r USING (request_id)
        ), answer AS MATERIALIZED (
            SELECT scope_ids, to_jsonb(quota_windows(ROW ('running', 0, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL)::quota_answer, scope_ids, v_now)) AS answer
            FROM (SELECT DISTINCT scope_ids FROM taken) AS sets
        )
        SELECT jsonb_object_agg(request_id, answer) INTO v_taken
        FROM taken JOIN answer USING (scope_ids);
        FOR i IN 1 .. cardinality(p_request_ids) LOOP
            IF p_tenant_ids[i] = ANY (v_lacking) THEN
                RETURN NEXT quota_reserve(
                    p_request_ids[i], p_tenant_ids[i], p_project_ids[i], p_key_ids[i], p_models[i],
                    p_prompt_tokens[i], p_completion_tokens[i], p_prompt_prices[i],
                    p_completion_prices[i], p_owners[i], p_leases[i], p_now);
            ELSE
                v_answer := jsonb_populate_record(NULL::quota_answer,
                    v_taken -> p_request_ids[i]::text);
                v_answer.completion_tokens := p_completion_tokens[i];
                RETURN NEXT v_answer;
            END IF;
        END LOOP;
    END
    $$;

CREATE FUNCTION public.quota_settle(p_request_id uuid, p_tenant_id uuid, p_key_id uuid, p_model text, p_status text, p_prompt_tokens integer, p_cached_tokens integer, p_completion_tokens integer, p_created_at timestamp with time zone, p_end_user text, p_cost_micro bigint, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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
    $$;

CREATE FUNCTION public.quota_settle_many(p_request_ids uuid[], p_tenant_ids uuid[], p_key_ids uuid[], p_models text[], p_statuses text[], p_prompt_tokens integer[], p_cached_tokens integer[], p_completion_tokens integer[], p_created_at timestamp with time zone[], p_end_users text[], p_costs bigint[], p_now timestamp with time zone) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
    DECLARE
        v_written uuid[];
        v_month date := limit_month(coalesce(p_now, clock_timestamp()));
        d record;
    BEGIN
        PERFORM sluice_enter_all(p_tenant_ids);
        PERFORM 1 FROM reservation WHERE request_id = ANY (p_request_ids)
        ORDER BY request_id FOR UPDATE;
        WITH event AS (
            SELECT * FROM unnest(
                p_request_ids, p_tenant_ids, p_key_ids, p_models, p_statuses, p_prompt_tokens,
                p_cached_tokens, p_completion_tokens, p_created_at, p_end_users, p_costs
            ) AS e (
                request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
                completion_tokens, created_at, end_user, cost_micro
            )
        ), seen AS (
            INSERT INTO usage_seen (request_id, tenant_id, created_at)
            SELECT request_id, tenant_id, created_at FROM event ORDER BY request_id
            ON CONFLICT (request_id) DO NOTHING
            RETURNING request_id
        ), written AS (
            SELECT event.* FROM event JOIN seen USING (request_id)
        ), ledger AS (
            INSERT INTO usage_event (
                request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
                completion_tokens, created_at, end_user, cost_micro
            )
            SELECT
                request_id, tenant_id, key_id, model, status, prompt_tokens, cached_tokens,
                completion_tokens, created_at, end_user, cost_micro
            FROM written
        ), sums AS (
            INSERT INTO usage_rollup AS r (
                tenant_id, key_id, model, hour, requests, prompt_tokens, cached_tokens,
                completion_tokens, cost_micro
            )
            SELECT
                tenant_id, key_id, model, date_trunc('hour', created_at, 'UTC'), count(*),
                sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(cost_micro)
            FROM written
            GROUP BY 1, 2, 3, 4
            ORDER BY 1, 4, 2, 3
            ON CONFLICT (tenant_id, hour, key_id, model) DO UPDATE SET
                requests = r.requests + excluded.requests,
                prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
                cached_tokens = r.cached_tokens + excluded.cached_tokens,
                completion_tokens = r.completion_tokens + excluded.completion_tokens,
                cost_micro = r.cost_micro + excluded.cost_micro
        ), closed AS (
            DELETE FROM reservation AS r USING event AS e
            WHERE r.request_id = e.request_id AND r.tenant_id = e.tenant_id
            RETURNING r.*
        ), amount AS (
            -- What a reservation holds beyond what was used goes back, and so does its slot.
            SELECT
                c.scope_ids, c.month, 0 AS requests,
                coalesce(w.prompt_tokens::bigint + w.completion_tokens, 0) - CASE
                    WHEN c.state = 'running' THEN c.prompt_tokens + c.completion_tokens ELSE 0
                END AS tokens,
                coalesce(w.cost_micro, 0) - CASE
                    WHEN c.state = 'running' THEN limit_cost(c.prompt_tokens, c.completion_tokens,
                        c.prompt_price, c.completion_price) ELSE 0
                END AS cost,
                CASE WHEN c.state = 'running' THEN -1 ELSE 0 END AS running,
                CASE WHEN c.state = 'queued' THEN -1 ELSE 0 END AS queued
            FROM closed AS c LEFT JOIN written AS w USING (request_id)
            UNION ALL
            -- Never reserved, or the reservation was lost: used is used.
            SELECT
                ARRAY[k.id, k.project_id, k.tenant_id], v_month, 1,
                w.prompt_tokens::bigint + w.completion_tokens, w.cost_micro, 0, 0
            FROM written AS w JOIN api_key AS k ON k.id = w.key_id
            WHERE NOT EXISTS (SELECT FROM closed AS c WHERE c.request_id = w.request_id)
        ), delta AS (
            SELECT
                scope_id, sum(requests)::bigint AS requests, sum(tokens)::bigint AS tokens,
                -- What was held in a month that is over is not given back to this one.
                sum(CASE WHEN tokens > 0 OR month = v_month THEN tokens ELSE 0 END)::bigint
                    AS month_tokens,
                sum(CASE WHEN cost > 0 OR month = v_month THEN cost ELSE 0 END)::bigint AS cost,
                sum(running)::bigint AS running, sum(queued)::bigint AS queued
            FROM amount CROSS JOIN LATERAL unnest(scope_ids) AS scope_id
            GROUP BY scope_id
        )
        SELECT
            array_agg(scope_id) AS scope_ids, array_agg(requests) AS requests,
            array_agg(tokens) AS tokens, array_agg(month_tokens) AS month_tokens,
            array_agg(cost) AS costs, array_agg(running) AS running, array_agg(queued) AS queued,
            ARRAY (SELECT request_id FROM seen) AS written
        INTO d FROM delta;
        v_written := d.written;
        IF d.scope_ids IS NOT NULL THEN
            PERFORM limit_apply_many(d.scope_ids, d.requests, d.tokens, d.month_tokens, d.costs,
                d.running, d.queued, p_now);
        END IF;
        RETURN v_written;
    END
    $$;

CREATE FUNCTION public.quota_take(p_asked public.quota_asked[], p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
    DECLARE
        v_now timestamptz := coalesce(p_now, clock_timestamp());
        d record;
    BEGIN
        INSERT INTO reservation (
            request_id, tenant_id, key_id, scope_ids, state, model, owner, month, prompt_tokens,
            completion_tokens, prompt_price, completion_price, created_at, expires_at
        )
        SELECT
            a.request_id, a.tenant_id, a.key_id,
            ARRAY (
                SELECT s.scope_id FROM limit_state AS s
                WHERE s.tenant_id = a.tenant_id
                    AND s.scope_id IN (a.tenant_id, a.project_id, a.key_id)
                ORDER BY s.scope_id
            ),
            'running', a.model, a.owner, limit_month(v_now), a.prompt_tokens,
            a.completion_tokens, a.prompt_price, a.completion_price, v_now, v_now + a.lease
        FROM unnest(p_asked) AS a ORDER BY a.request_id;
        SELECT
            array_agg(scope_id) AS scope_ids, array_agg(requests) AS requests,
            array_agg(tokens) AS tokens, array_agg(cost) AS costs,
            array_agg(0::bigint) AS queued
        INTO d FROM quota_needs(p_asked);
        IF d.scope_ids IS NOT NULL THEN
            PERFORM limit_apply_many(d.scope_ids, d.requests, d.tokens, d.tokens, d.costs,
                d.requests, d.queued, p_now);
        END IF;
    END
    $$;

CREATE FUNCTION public.quota_windows(p_answer public.quota_answer, p_scope_ids uuid[], p_now timestamp with time zone) RETURNS public.quota_answer
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

CREATE FUNCTION public.sluice_enter(p_tenant_id uuid) RETURNS uuid
    LANGUAGE plpgsql
    AS $$
    BEGIN
        PERFORM set_config('sluice.tenants', p_tenant_id::text, true);
        RETURN p_tenant_id;
    END
    $$;

CREATE FUNCTION public.sluice_enter_all(p_tenant_ids uuid[]) RETURNS void
    LANGUAGE sql
    AS $$
        SELECT set_config('sluice.tenants', array_to_string(
            ARRAY (SELECT DISTINCT id FROM unnest(p_tenant_ids) AS id), ','), true)
    $$;

CREATE FUNCTION public.sluice_tenants() RETURNS uuid[]
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
        SELECT string_to_array(nullif(current_setting('sluice.tenants', true), ''), ',')::uuid[]
    $$;

CREATE FUNCTION public.stream_kill(p_tenant_id uuid, p_request_id uuid) RETURNS void
    LANGUAGE plpgsql
    AS $$
    BEGIN
        PERFORM audit_record(p_tenant_id, 'stream.kill', p_request_id::text, NULL, NULL);
        PERFORM pg_notify('sluice_changes', 'request ' || p_request_id);
    END
    $$;

CREATE FUNCTION public.tenant_gets_default_project() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
    BEGIN
        INSERT INTO project (tenant_id, name, is_default) VALUES (NEW.id, 'default', true);
        RETURN NULL;
    END
    $$;

CREATE FUNCTION public.usage_event_add_partitions(p_from date, p_months integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
    DECLARE
        v_month date;
        v_name text;
        v_added integer := 0;
    BEGIN
        FOR i IN 0 .. p_months - 1 LOOP
            v_month := date_trunc('month', p_from)::date + make_interval(months => i);
            v_name := to_char(v_month, '"usage_event_"YYYY"_"MM');
            IF to_regclass(v_name) IS NULL THEN
                BEGIN
                EXECUTE format(
                    'CREATE TABLE %I PARTITION OF usage_event FOR VALUES FROM (%L) TO (%L)',
                    v_name,
                    to_char(v_month, 'YYYY-MM-DD"T00:00:00Z"'),
                    to_char(v_month + interval '1 month', 'YYYY-MM-DD"T00:00:00Z"')
                );
                EXCEPTION WHEN check_violation THEN
                    -- The default partition has rows of this month: it keeps the others, too.
                    CONTINUE;
                END;
                EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', v_name);
                EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', v_name);
                v_added := v_added + 1;
            END IF;
        END LOOP;
        RETURN v_added;
    END
    $$;

CREATE FUNCTION public.usage_event_drop_partitions(p_before date) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    SET lock_timeout TO '2s'
    AS $_$
    DECLARE
        v_name text;
        v_dropped integer := 0;
    BEGIN
        FOR v_name IN
            SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'usage_event'::regclass
                AND c.relname ~ '^usage_event_[0-9]{4}_[0-9]{2}$'
                AND to_date(right(c.relname, 7), 'YYYY_MM') + interval '1 month' <= p_before
            ORDER BY c.relname
        LOOP
            EXECUTE format('DROP TABLE %I', v_name);
            v_dropped := v_dropped + 1;
        END LOOP;
        RETURN v_dropped;
    END
    $_$;

CREATE FUNCTION public.usage_event_drop_strays(p_before timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    SET lock_timeout TO '2s'
    AS $$
    DECLARE
        v_dropped integer;
    BEGIN
        IF NOT EXISTS (
            SELECT FROM usage_event
            WHERE tableoid = 'usage_event_default'::regclass AND created_at < p_before
        ) THEN
            RETURN 0;
        END IF;
        ALTER TABLE usage_event_default DISABLE TRIGGER usage_event_append_only;
        DELETE FROM usage_event
        WHERE tableoid = 'usage_event_default'::regclass AND ctid = ANY (ARRAY (
            SELECT ctid FROM usage_event
            WHERE tableoid = 'usage_event_default'::regclass AND created_at < p_before
            LIMIT 10000
        ));
        GET DIAGNOSTICS v_dropped = ROW_COUNT;
        ALTER TABLE usage_event_default ENABLE TRIGGER usage_event_append_only;
        RETURN v_dropped;
    END
    $$;

CREATE FUNCTION public.usage_event_is_append_only() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
    BEGIN
        RAISE EXCEPTION 'usage_event is append-only' USING ERRCODE = 'restrict_violation';
    END
    $$;

CREATE TABLE public.adapter (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    parent text NOT NULL,
    path text NOT NULL,
    base_model text,
    rank integer NOT NULL,
    digest text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT adapter_rank_check CHECK ((rank > 0))
);

ALTER TABLE ONLY public.adapter FORCE ROW LEVEL SECURITY;

CREATE TABLE public.api_key (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    public_id text NOT NULL COLLATE pg_catalog."C",
    key_hash bytea NOT NULL,
    name text NOT NULL,
    scopes text[] NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    project_id uuid NOT NULL,
    allowed_models text[] DEFAULT '{}'::text[] NOT NULL,
    model_aliases jsonb DEFAULT '{}'::jsonb NOT NULL,
    revoke_at timestamp with time zone,
    last_used_at timestamp with time zone,
    replaces_key_id uuid,
    CONSTRAINT api_key_key_hash_check CHECK ((octet_length(key_hash) = 32)),
    CONSTRAINT api_key_model_aliases_check CHECK ((jsonb_typeof(model_aliases) = 'object'::text)),
    CONSTRAINT api_key_name_check CHECK (((char_length(name) >= 1) AND (char_length(name) <= 200))),
    CONSTRAINT api_key_public_id_check CHECK ((public_id ~ '^[0-9A-Za-z]{12}$'::text)),
    CONSTRAINT api_key_scopes_check CHECK (((cardinality(scopes) > 0) AND (scopes <@ ARRAY['chat'::text, 'responses'::text, 'usage'::text, 'admin'::text])))
);

ALTER TABLE ONLY public.api_key FORCE ROW LEVEL SECURITY;

CREATE TABLE public.audit_log (
    id bigint NOT NULL,
    tenant_id uuid NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    object_id text NOT NULL,
    before jsonb,
    after jsonb
);

ALTER TABLE ONLY public.audit_log FORCE ROW LEVEL SECURITY;

ALTER TABLE public.audit_log ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.audit_log_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.ended_stream (
    tenant_id uuid NOT NULL,
    id text NOT NULL,
    kind text NOT NULL,
    num_dropped integer NOT NULL,
    items bytea NOT NULL,
    ended_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    size integer GENERATED ALWAYS AS (octet_length(items)) STORED NOT NULL
);
ALTER TABLE ONLY public.ended_stream ALTER COLUMN items SET STORAGE EXTERNAL;

ALTER TABLE ONLY public.ended_stream FORCE ROW LEVEL SECURITY;

CREATE UNLOGGED TABLE public.gateway_worker (
    id text NOT NULL,
    address text NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE public.idempotency_key (
    tenant_id uuid NOT NULL,
    key_hash bytea NOT NULL,
    body_hash bytea NOT NULL,
    answer_id text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

ALTER TABLE ONLY public.idempotency_key FORCE ROW LEVEL SECURITY;

CREATE TABLE public.limit_policy (
    scope_id uuid NOT NULL,
    scope_kind text NOT NULL,
    tenant_id uuid NOT NULL,
    requests_per_minute bigint,
    tokens_per_minute bigint,
    max_concurrent integer,
    max_queued integer,
    monthly_tokens bigint,
    monthly_cost_micro bigint,
    priority smallint,
    weight double precision,
    max_cached_blocks integer,
    CONSTRAINT limit_policy_max_cached_blocks_check CHECK ((max_cached_blocks >= 0)),
    CONSTRAINT limit_policy_max_concurrent_check CHECK ((max_concurrent >= 1)),
    CONSTRAINT limit_policy_max_queued_check CHECK ((max_queued >= 0)),
    CONSTRAINT limit_policy_monthly_cost_micro_check CHECK (((monthly_cost_micro >= 0) AND (monthly_cost_micro <= '1000000000000000'::bigint))),
    CONSTRAINT limit_policy_monthly_tokens_check CHECK (((monthly_tokens >= 0) AND (monthly_tokens <= '1000000000000000'::bigint))),
    CONSTRAINT limit_policy_requests_per_minute_check CHECK (((requests_per_minute >= 1) AND (requests_per_minute <= 2147483647))),
    CONSTRAINT limit_policy_scope_kind_check CHECK ((scope_kind = ANY (ARRAY['tenant'::text, 'project'::text, 'key'::text]))),
    CONSTRAINT limit_policy_tokens_per_minute_check CHECK (((tokens_per_minute >= 1) AND (tokens_per_minute <= 2147483647))),
    CONSTRAINT limit_policy_weight_check CHECK (((weight > (0)::double precision) AND (weight < 'Infinity'::double precision)))
);

ALTER TABLE ONLY public.limit_policy FORCE ROW LEVEL SECURITY;

CREATE TABLE public.limit_state (
    scope_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    requests_used bigint DEFAULT 0 NOT NULL,
    tokens_used bigint DEFAULT 0 NOT NULL,
    refilled_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    num_running integer DEFAULT 0 NOT NULL,
    num_queued integer DEFAULT 0 NOT NULL,
    month date DEFAULT '-infinity'::date NOT NULL,
    month_tokens bigint DEFAULT 0 NOT NULL,
    month_cost_micro bigint DEFAULT 0 NOT NULL,
    CONSTRAINT limit_state_counts_check CHECK (((requests_used >= 0) AND (tokens_used >= 0) AND (num_running >= 0) AND (num_queued >= 0) AND (month_tokens >= 0) AND (month_cost_micro >= 0)))
)
WITH (fillfactor='50');

ALTER TABLE ONLY public.limit_state FORCE ROW LEVEL SECURITY;

CREATE TABLE public.project (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    is_default boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT project_name_check CHECK (((char_length(name) >= 1) AND (char_length(name) <= 200)))
);

ALTER TABLE ONLY public.project FORCE ROW LEVEL SECURITY;

CREATE TABLE public.response (
    tenant_id uuid NOT NULL,
    id text NOT NULL,
    status text NOT NULL,
    body bytea NOT NULL,
    input bytea NOT NULL,
    previous_response_id text,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    size integer GENERATED ALWAYS AS ((octet_length(body) + octet_length(input))) STORED NOT NULL
);

ALTER TABLE ONLY public.response FORCE ROW LEVEL SECURITY;

CREATE TABLE public.tenant (
    id uuid NOT NULL,
    name text NOT NULL,
    weight double precision DEFAULT 1 NOT NULL,
    priority smallint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    disabled_at timestamp with time zone,
    CONSTRAINT tenant_name_check CHECK (((char_length(name) >= 1) AND (char_length(name) <= 200))),
    CONSTRAINT tenant_weight_check CHECK (((weight > (0)::double precision) AND (weight < 'Infinity'::double precision)))
);

ALTER TABLE ONLY public.tenant FORCE ROW LEVEL SECURITY;

CREATE TABLE public.usage_event (
    request_id uuid CONSTRAINT usage_event_request_id_not_null1 NOT NULL,
    tenant_id uuid CONSTRAINT usage_event_tenant_id_not_null1 NOT NULL,
    key_id uuid CONSTRAINT usage_event_key_id_not_null1 NOT NULL,
    model text CONSTRAINT usage_event_model_not_null1 NOT NULL,
    status text CONSTRAINT usage_event_status_not_null1 NOT NULL,
    prompt_tokens integer CONSTRAINT usage_event_prompt_tokens_not_null1 NOT NULL,
    cached_tokens integer CONSTRAINT usage_event_cached_tokens_not_null1 NOT NULL,
    completion_tokens integer CONSTRAINT usage_event_completion_tokens_not_null1 NOT NULL,
    created_at timestamp with time zone CONSTRAINT usage_event_created_at_not_null1 NOT NULL,
    end_user text,
    cost_micro bigint DEFAULT 0 NOT NULL,
    CONSTRAINT usage_event_cached_tokens_check CHECK (((cached_tokens >= 0) AND (cached_tokens <= prompt_tokens))),
    CONSTRAINT usage_event_completion_tokens_check CHECK ((completion_tokens >= 0)),
    CONSTRAINT usage_event_cost_micro_check CHECK ((cost_micro >= 0)),
    CONSTRAINT usage_event_end_user_check CHECK (((char_length(end_user) >= 1) AND (char_length(end_user) <= 200))),
    CONSTRAINT usage_event_model_check CHECK (((char_length(model) >= 1) AND (char_length(model) <= 200))),
    CONSTRAINT usage_event_prompt_tokens_check CHECK ((prompt_tokens >= 0)),
    CONSTRAINT usage_event_status_check CHECK ((status = ANY (ARRAY['stop'::text, 'length'::text, 'tool_calls'::text, 'cancelled'::text, 'disconnected'::text, 'error'::text])))
)
PARTITION BY RANGE (created_at);

ALTER TABLE ONLY public.usage_event FORCE ROW LEVEL SECURITY;

CREATE TABLE public.usage_event_default (
    request_id uuid CONSTRAINT usage_event_request_id_not_null1 NOT NULL,
    tenant_id uuid CONSTRAINT usage_event_tenant_id_not_null1 NOT NULL,
    key_id uuid CONSTRAINT usage_event_key_id_not_null1 NOT NULL,
    model text CONSTRAINT usage_event_model_not_null1 NOT NULL,
    status text CONSTRAINT usage_event_status_not_null1 NOT NULL,
    prompt_tokens integer CONSTRAINT usage_event_prompt_tokens_not_null1 NOT NULL,
    cached_tokens integer CONSTRAINT usage_event_cached_tokens_not_null1 NOT NULL,
    completion_tokens integer CONSTRAINT usage_event_completion_tokens_not_null1 NOT NULL,
    created_at timestamp with time zone CONSTRAINT usage_event_created_at_not_null1 NOT NULL,
    end_user text,
    cost_micro bigint DEFAULT 0 CONSTRAINT usage_event_cost_micro_not_null NOT NULL,
    CONSTRAINT usage_event_cached_tokens_check CHECK (((cached_tokens >= 0) AND (cached_tokens <= prompt_tokens))),
    CONSTRAINT usage_event_completion_tokens_check CHECK ((completion_tokens >= 0)),
    CONSTRAINT usage_event_cost_micro_check CHECK ((cost_micro >= 0)),
    CONSTRAINT usage_event_end_user_check CHECK (((char_length(end_user) >= 1) AND (char_length(end_user) <= 200))),
    CONSTRAINT usage_event_model_check CHECK (((char_length(model) >= 1) AND (char_length(model) <= 200))),
    CONSTRAINT usage_event_prompt_tokens_check CHECK ((prompt_tokens >= 0)),
    CONSTRAINT usage_event_status_check CHECK ((status = ANY (ARRAY['stop'::text, 'length'::text, 'tool_calls'::text, 'cancelled'::text, 'disconnected'::text, 'error'::text])))
);

ALTER TABLE ONLY public.usage_event_default FORCE ROW LEVEL SECURITY;

CREATE TABLE public.usage_rollup (
    tenant_id uuid NOT NULL,
    key_id uuid NOT NULL,
    model text NOT NULL,
    hour timestamp with time zone NOT NULL,
    requests bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cost_micro bigint NOT NULL
)
WITH (fillfactor='70');

ALTER TABLE ONLY public.usage_rollup FORCE ROW LEVEL SECURITY;

CREATE TABLE public.usage_seen (
    request_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL
);

ALTER TABLE ONLY public.usage_seen FORCE ROW LEVEL SECURITY;

ALTER TABLE ONLY public.usage_event ATTACH PARTITION public.usage_event_default DEFAULT;

ALTER TABLE ONLY public.adapter
    ADD CONSTRAINT adapter_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.adapter
    ADD CONSTRAINT adapter_tenant_id_name_key UNIQUE (tenant_id, name);

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_public_id_key UNIQUE (public_id);

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_tenant_id_id_key UNIQUE (tenant_id, id);

ALTER TABLE ONLY public.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.ended_stream
    ADD CONSTRAINT ended_stream_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY public.gateway_worker
    ADD CONSTRAINT gateway_worker_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.idempotency_key
    ADD CONSTRAINT idempotency_key_pkey PRIMARY KEY (tenant_id, key_hash);

ALTER TABLE ONLY public.limit_policy
    ADD CONSTRAINT limit_policy_pkey PRIMARY KEY (scope_id);

ALTER TABLE ONLY public.limit_state
    ADD CONSTRAINT limit_state_pkey PRIMARY KEY (scope_id);

ALTER TABLE ONLY public.project
    ADD CONSTRAINT project_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.project
    ADD CONSTRAINT project_tenant_id_id_key UNIQUE (tenant_id, id);

ALTER TABLE ONLY public.project
    ADD CONSTRAINT project_tenant_id_name_key UNIQUE (tenant_id, name);

ALTER TABLE ONLY public.reservation
    ADD CONSTRAINT reservation_pkey PRIMARY KEY (request_id);

ALTER TABLE ONLY public.response
    ADD CONSTRAINT response_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY public.tenant
    ADD CONSTRAINT tenant_name_key UNIQUE (name);

ALTER TABLE ONLY public.tenant
    ADD CONSTRAINT tenant_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.usage_rollup
    ADD CONSTRAINT usage_rollup_pkey PRIMARY KEY (tenant_id, hour, key_id, model);

ALTER TABLE ONLY public.usage_seen
    ADD CONSTRAINT usage_seen_pkey PRIMARY KEY (request_id);

CREATE INDEX api_key_project_id_idx ON public.api_key USING btree (project_id);

CREATE INDEX audit_log_tenant_id_id_idx ON public.audit_log USING btree (tenant_id, id);

CREATE INDEX ended_stream_expires_at_idx ON public.ended_stream USING btree (expires_at);

CREATE INDEX ended_stream_tenant_id_ended_at_idx ON public.ended_stream USING btree (tenant_id, ended_at);

CREATE INDEX idempotency_key_expires_at_idx ON public.idempotency_key USING btree (expires_at);

CREATE INDEX idempotency_key_tenant_id_created_at_idx ON public.idempotency_key USING btree (tenant_id, created_at);

CREATE INDEX limit_policy_tenant_id_idx ON public.limit_policy USING btree (tenant_id);

CREATE UNIQUE INDEX project_is_default_key ON public.project USING btree (tenant_id) WHERE is_default;

CREATE INDEX reservation_expires_at_idx ON public.reservation USING btree (expires_at);

CREATE INDEX reservation_tenant_id_state_idx ON public.reservation USING btree (tenant_id, state, created_at);

CREATE INDEX response_expires_at_idx ON public.response USING btree (expires_at);

CREATE INDEX response_tenant_id_created_at_idx ON public.response USING btree (tenant_id, created_at);

CREATE INDEX usage_event_tenant_id_created_at_idx ON ONLY public.usage_event USING btree (tenant_id, created_at);

CREATE INDEX usage_event_default_tenant_id_created_at_idx ON public.usage_event_default USING btree (tenant_id, created_at);

CREATE INDEX usage_seen_created_at_idx ON public.usage_seen USING brin (created_at);

ALTER INDEX public.usage_event_tenant_id_created_at_idx ATTACH PARTITION public.usage_event_default_tenant_id_created_at_idx;

CREATE TRIGGER adapter_audit AFTER INSERT OR DELETE OR UPDATE ON public.adapter FOR EACH ROW EXECUTE FUNCTION public.audit_change('adapter');

CREATE TRIGGER adapter_notify AFTER INSERT OR DELETE OR UPDATE ON public.adapter FOR EACH ROW EXECUTE FUNCTION public.notify_adapter_change();

CREATE TRIGGER api_key_audit AFTER INSERT OR DELETE OR UPDATE ON public.api_key FOR EACH ROW EXECUTE FUNCTION public.audit_change('key');

CREATE TRIGGER api_key_notify AFTER INSERT OR UPDATE OF key_hash, name, scopes, project_id, allowed_models, model_aliases, expires_at, revoked_at, revoke_at ON public.api_key FOR EACH ROW EXECUTE FUNCTION public.notify_key_change();

CREATE TRIGGER api_key_project BEFORE INSERT ON public.api_key FOR EACH ROW EXECUTE FUNCTION public.api_key_gets_project();

CREATE TRIGGER audit_log_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.audit_log FOR EACH STATEMENT EXECUTE FUNCTION public.audit_log_is_append_only();

CREATE TRIGGER limit_policy_audit AFTER INSERT OR DELETE OR UPDATE ON public.limit_policy FOR EACH ROW EXECUTE FUNCTION public.audit_change('limits');

CREATE TRIGGER limit_policy_notify AFTER INSERT OR UPDATE ON public.limit_policy FOR EACH ROW EXECUTE FUNCTION public.notify_tenant_change();

CREATE TRIGGER project_audit AFTER INSERT OR DELETE OR UPDATE ON public.project FOR EACH ROW EXECUTE FUNCTION public.audit_change('project');

CREATE TRIGGER tenant_audit AFTER INSERT OR DELETE OR UPDATE ON public.tenant FOR EACH ROW EXECUTE FUNCTION public.audit_change('tenant');

CREATE TRIGGER tenant_default_project AFTER INSERT ON public.tenant FOR EACH ROW EXECUTE FUNCTION public.tenant_gets_default_project();

CREATE TRIGGER tenant_notify AFTER UPDATE ON public.tenant FOR EACH ROW EXECUTE FUNCTION public.notify_tenant_change();

CREATE TRIGGER usage_event_append_only BEFORE DELETE OR UPDATE ON public.usage_event FOR EACH ROW EXECUTE FUNCTION public.usage_event_is_append_only();

CREATE TRIGGER usage_event_not_truncated BEFORE TRUNCATE ON public.usage_event FOR EACH STATEMENT EXECUTE FUNCTION public.usage_event_is_append_only();

ALTER TABLE ONLY public.adapter
    ADD CONSTRAINT adapter_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES public.tenant(id);

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_project_id_fkey FOREIGN KEY (tenant_id, project_id) REFERENCES public.project(tenant_id, id);

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_replaces_key_id_fkey FOREIGN KEY (replaces_key_id) REFERENCES public.api_key(id);

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES public.tenant(id);

ALTER TABLE ONLY public.ended_stream
    ADD CONSTRAINT ended_stream_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES public.tenant(id);

ALTER TABLE ONLY public.idempotency_key
    ADD CONSTRAINT idempotency_key_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES public.tenant(id);

ALTER TABLE ONLY public.limit_policy
    ADD CONSTRAINT limit_policy_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES public.tenant(id);

ALTER TABLE ONLY public.limit_state
    ADD CONSTRAINT limit_state_scope_id_fkey FOREIGN KEY (scope_id) REFERENCES public.limit_policy(scope_id);

ALTER TABLE ONLY public.project
    ADD CONSTRAINT project_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES public.tenant(id);

ALTER TABLE ONLY public.reservation
    ADD CONSTRAINT reservation_key_id_fkey FOREIGN KEY (tenant_id, key_id) REFERENCES public.api_key(tenant_id, id);

ALTER TABLE ONLY public.response
    ADD CONSTRAINT response_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES public.tenant(id);

ALTER TABLE public.usage_event
    ADD CONSTRAINT usage_event_key_id_fkey FOREIGN KEY (tenant_id, key_id) REFERENCES public.api_key(tenant_id, id);

ALTER TABLE public.adapter ENABLE ROW LEVEL SECURITY;

CREATE POLICY adapter_all ON public.adapter TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY adapter_entered ON public.adapter TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.api_key ENABLE ROW LEVEL SECURITY;

CREATE POLICY api_key_all ON public.api_key TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY api_key_entered ON public.api_key TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.audit_log ENABLE ROW LEVEL SECURITY;

CREATE POLICY audit_log_all ON public.audit_log TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY audit_log_entered ON public.audit_log TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.ended_stream ENABLE ROW LEVEL SECURITY;

CREATE POLICY ended_stream_all ON public.ended_stream TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY ended_stream_entered ON public.ended_stream TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.idempotency_key ENABLE ROW LEVEL SECURITY;

CREATE POLICY idempotency_key_all ON public.idempotency_key TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY idempotency_key_entered ON public.idempotency_key TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.limit_policy ENABLE ROW LEVEL SECURITY;

CREATE POLICY limit_policy_all ON public.limit_policy TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY limit_policy_entered ON public.limit_policy TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.limit_state ENABLE ROW LEVEL SECURITY;

CREATE POLICY limit_state_all ON public.limit_state TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY limit_state_entered ON public.limit_state TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.project ENABLE ROW LEVEL SECURITY;

CREATE POLICY project_all ON public.project TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY project_entered ON public.project TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.reservation ENABLE ROW LEVEL SECURITY;

CREATE POLICY reservation_all ON public.reservation TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY reservation_entered ON public.reservation TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.response ENABLE ROW LEVEL SECURITY;

CREATE POLICY response_all ON public.response TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY response_entered ON public.response TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.tenant ENABLE ROW LEVEL SECURITY;

CREATE POLICY tenant_all ON public.tenant TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY tenant_entered ON public.tenant TO sluice_app USING ((id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.usage_event ENABLE ROW LEVEL SECURITY;

CREATE POLICY usage_event_all ON public.usage_event TO sluice_operator USING (true) WITH CHECK (true);

ALTER TABLE public.usage_event_default ENABLE ROW LEVEL SECURITY;

CREATE POLICY usage_event_entered ON public.usage_event TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.usage_rollup ENABLE ROW LEVEL SECURITY;

CREATE POLICY usage_rollup_all ON public.usage_rollup TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY usage_rollup_entered ON public.usage_rollup TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

ALTER TABLE public.usage_seen ENABLE ROW LEVEL SECURITY;

CREATE POLICY usage_seen_all ON public.usage_seen TO sluice_operator USING (true) WITH CHECK (true);

CREATE POLICY usage_seen_entered ON public.usage_seen TO sluice_app USING ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[]))) WITH CHECK ((tenant_id = ANY (( SELECT public.sluice_tenants() AS sluice_tenants)::uuid[])));

GRANT USAGE ON SCHEMA public TO sluice_app;
GRANT USAGE ON SCHEMA public TO sluice_operator;

REVOKE ALL ON FUNCTION public.claims_find(p_key_hashes bytea[], p_tenant_ids uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION public.claims_find(p_key_hashes bytea[], p_tenant_ids uuid[]) TO sluice_app;
GRANT ALL ON FUNCTION public.claims_find(p_key_hashes bytea[], p_tenant_ids uuid[]) TO sluice_operator;

REVOKE ALL ON FUNCTION public.key_lookup(p_public_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION public.key_lookup(p_public_id text) TO sluice_app;
GRANT ALL ON FUNCTION public.key_lookup(p_public_id text) TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.reservation TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.reservation TO sluice_operator;

REVOKE ALL ON FUNCTION public.usage_event_add_partitions(p_from date, p_months integer) FROM PUBLIC;
GRANT ALL ON FUNCTION public.usage_event_add_partitions(p_from date, p_months integer) TO sluice_operator;

REVOKE ALL ON FUNCTION public.usage_event_drop_partitions(p_before date) FROM PUBLIC;
GRANT ALL ON FUNCTION public.usage_event_drop_partitions(p_before date) TO sluice_operator;

REVOKE ALL ON FUNCTION public.usage_event_drop_strays(p_before timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.usage_event_drop_strays(p_before timestamp with time zone) TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.adapter TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.adapter TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.api_key TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.api_key TO sluice_operator;

GRANT SELECT,INSERT ON TABLE public.audit_log TO sluice_app;
GRANT SELECT,INSERT ON TABLE public.audit_log TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.ended_stream TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.ended_stream TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.gateway_worker TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.gateway_worker TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.idempotency_key TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.idempotency_key TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.limit_policy TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.limit_policy TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.limit_state TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.limit_state TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.project TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.project TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.response TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.response TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.tenant TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.tenant TO sluice_operator;

GRANT SELECT,INSERT ON TABLE public.usage_event TO sluice_app;
GRANT SELECT,INSERT ON TABLE public.usage_event TO sluice_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.usage_rollup TO sluice_app;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.usage_rollup TO sluice_operator;

GRANT SELECT,INSERT ON TABLE public.usage_seen TO sluice_app;
GRANT SELECT,INSERT,DELETE ON TABLE public.usage_seen TO sluice_operator;
