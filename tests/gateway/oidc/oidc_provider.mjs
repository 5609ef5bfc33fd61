// The provider of the package oidc-provider, with its own pages, for one client and any person.
import Provider from "oidc-provider";

const [port, clientId, secret, redirectUri] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: clientId,
      client_secret: secret,
      redirect_uris: [redirectUri],
      response_types: ["code"],
      grant_types: ["authorization_code"],
    },
  ],
  claims: { openid: ["sub", "tenant", "roles"], email: ["email"], profile: ["name"] },
  conformIdTokenClaims: false, // all claims are in the ID token
  cookies: { keys: ["a key for the tests"] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: async () => ({ sub: id, email: `${id}@acme.example`, tenant: "acme", roles: ["admin"] }),
  }),
  pkce: { required: () => true },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
