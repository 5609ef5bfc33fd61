-- Records a change of a row in the audit log. The trigger's argument is what a row of its table is
-- called there. A key's hash is never recorded, and what the server notes by itself is no change.
CREATE OR REPLACE FUNCTION audit_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    -- What the server notes by itself is no change, and a key's hash is nobody's to read.
    v_before jsonb := CASE WHEN TG_OP <> 'INSERT' THEN
        to_jsonb(OLD) - ARRAY['key_hash', 'last_used_at', 'expiry_reported', 'leased_until', 'purge_at'] END;
    v_after jsonb := CASE WHEN TG_OP <> 'DELETE' THEN
        to_jsonb(NEW) - ARRAY['key_hash', 'last_used_at', 'expiry_reported', 'leased_until', 'purge_at'] END;
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
