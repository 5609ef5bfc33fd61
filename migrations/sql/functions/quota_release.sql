-- Undoes a reservation that came to nothing; it leaves no row in the ledger. False if there is
-- none.
CREATE OR REPLACE FUNCTION quota_release(p_request_id uuid, p_tenant_id uuid, p_now timestamptz)
RETURNS boolean
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
