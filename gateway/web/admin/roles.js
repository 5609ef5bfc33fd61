/** What who has signed in may do here, as `tenants/access.py` has it; the server refuses the rest. */

const RANKS = ["billing", "view", "admin", "owner"];
let rank = RANKS.length - 1;

/** @param {string[]} scopes of the key; without any of the four the server decides */
export function setRole(scopes) {
  const found = Math.max(...scopes.map((scope) => RANKS.indexOf(scope)));
  rank = found < 0 ? RANKS.length - 1 : found;
  document.documentElement.dataset.role = RANKS[rank];
}

/** Whether the reader has this role, or one that includes it. */
export const may = (role) => rank >= RANKS.indexOf(role);
