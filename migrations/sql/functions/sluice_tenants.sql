-- The tenants that this transaction has entered; null if there are none, and then it sees no row.
CREATE OR REPLACE FUNCTION sluice_tenants() RETURNS uuid[]
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
SELECT string_to_array(nullif(current_setting('sluice.tenants', true), ''), ',')::uuid[]
$$;
