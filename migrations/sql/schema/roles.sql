-- The two roles that the server works as. They cannot log in, own no tables and are not exempt from
-- policies (isolation.sql). Roles belong to the whole server, and other databases on it may use
-- them, so nothing ever drops them.
DO $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['sluice_app', 'sluice_operator'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = v_role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- The migration of another database was first.
            END;
        END IF;
        -- Whoever migrates owns the tables. It must be a member of the operators to see their rows
        -- in later migrations.
        IF NOT pg_has_role(current_user, v_role, 'USAGE') THEN
            EXECUTE format('GRANT %I TO %I', v_role, current_user);
        END IF;
    END LOOP;
END
$$;

GRANT USAGE ON SCHEMA public TO sluice_app, sluice_operator;
GRANT SELECT ON alembic_version TO sluice_app, sluice_operator;
