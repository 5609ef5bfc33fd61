from __future__ import annotations

from tenants.bench.requests import main

if __name__ == "__main__":
    main()
