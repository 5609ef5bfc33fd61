-- Forces the policies of isolation.sql on a table, and grants the two roles its use; for migrations.
-- p_column names the tenant of a row; p_grants are the privileges of both roles.
CREATE OR REPLACE FUNCTION sluice_protect(
    p_table text, p_column text DEFAULT 'tenant_id',
    p_grants text DEFAULT 'SELECT, INSERT, UPDATE, DELETE'
)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    -- A subquery is evaluated once per statement, and not once per row.
    v_entered text := format('%I = ANY ((SELECT sluice_tenants())::uuid[])', p_column);
BEGIN
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', p_table);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', p_table);
    EXECUTE format('CREATE POLICY %I ON %I TO sluice_app USING (%s) WITH CHECK (%s)',
        p_table || '_entered', p_table, v_entered, v_entered);
    EXECUTE format('CREATE POLICY %I ON %I TO sluice_operator USING (true) WITH CHECK (true)',
        p_table || '_all', p_table);
    EXECUTE format('GRANT %s ON %I TO sluice_app, sluice_operator', p_grants, p_table);
END
$$;
