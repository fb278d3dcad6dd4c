// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

// The rules of the two issuers, with an option each.
const (
	ruleA = `{issuer: "` + issuerA + `", jwks: 'KEYS_A'}`
	ruleB = `{issuer: "` + issuerB + `", jwks: 'KEYS_B'}`
)

// tokenVerdicts returns rules for tokens without policies.
func tokenVerdicts() []verdict {
	return []verdict{
		{"one issuer", tokenRules("one", ruleA), `
			200 GET /
			200 GET / | Authorization: Bearer <ann>
			200 GET /?access_token=<ann>
			401 GET / | Authorization: Bearer <expired>
			401 GET / | Authorization: Bearer <early>
			401 GET / | Authorization: Bearer <wrong-key>
			401 GET / | Authorization: Bearer <none>
			401 GET / | Authorization: Bearer <unsigned>
			401 GET / | Authorization: Bearer <hmac>
			401 GET / | Authorization: Bearer <changed>
			401 GET / | Authorization: Bearer <foreign>
			401 GET / | Authorization: Bearer x.y.z
			401 GET / | Authorization: Bearer <ann> | Authorization: Bearer <expired>
			401 GET /?access_token=<expired> | Authorization: Bearer <ann>
			200 GET / | Authorization: Basic YTpi
			200 GET / | X-Token: <expired>
			200 GET / | port tcp | Authorization: Bearer <expired>
			200 OPTIONS / | Origin: http://x | Access-Control-Request-Method: GET | Authorization: Bearer <expired>
			401 OPTIONS / | Authorization: Bearer <expired>
		`},
		{"a header that no request has", tokenRules("one", `{issuer: "`+issuerA+`", jwks: 'KEYS_A', fromHeaders: [{name: a b}]}`) + "---\n" +
			policy("p", `{rules: [{to: [{operation: {paths: [/open]}}]}, {from: [{source: {requestPrincipals: ["*"]}}]}]}`), `
			200 GET /open | Authorization: Bearer <expired>
			403 GET / | Authorization: Bearer <ann>
			403 GET /?access_token=<ann>
		`},
		{"audiences", tokenRules("aud", `{issuer: "`+issuerA+`", jwks: 'KEYS_A', audiences: [api, web]}`), `
			200 GET / | Authorization: Bearer <web>
			200 GET / | Authorization: Bearer <lists>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"two issuers", tokenRules("a", ruleA) + "---\n" + tokenRules("b", ruleB), `
			200 GET /
			200 GET / | Authorization: Bearer <ann>
			200 GET / | Authorization: Bearer <b>
			401 GET / | Authorization: Bearer <b-by-a>
			401 GET / | Authorization: Bearer <wrong-key>
			401 GET / | Authorization: Bearer <foreign>
		`},
		{"an issuer without keys", tokenRules("a", `{issuer: "`+issuerB+`", jwks: '{"keys": [{"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}'}, `+ruleA), `
			200 GET /
			200 GET / | Authorization: Bearer <ann>
			401 GET / | Authorization: Bearer <b>
		`},
		{"some usable keys", tokenRules("a", `{issuer: "`+issuerA+`", jwks: 'KEYS_MIXED'}`), `
			200 GET / | Authorization: Bearer <ann>
			401 GET / | Authorization: Bearer <wrong-key>
		`},
		{"keys that are not for signatures", tokenRules("a", `{issuer: "`+issuerA+`", jwks: 'KEYS_UNUSED'}, `+ruleB), `
			401 GET / | Authorization: Bearer <ann>
			200 GET / | Authorization: Bearer <b>
		`},
		{"places", tokenRules("p", `{issuer: "`+issuerA+`", jwks: 'KEYS_A', fromHeaders: [{name: X-Token, prefix: "Token "}], fromParams: [tok], fromCookies: [session]}`), `
			200 GET / | X-Token: Token <ann>
			401 GET / | X-Token: Token <expired>
			200 GET / | X-Token: <expired>
			200 GET /?tok=<ann>
			401 GET /?tok=<expired>
			200 GET / | Cookie: a=b; session=<ann>
			401 GET / | Cookie: a=b; session=<expired>
			200 GET / | Authorization: Bearer <expired>
			200 GET /?access_token=<expired>
		`},
		{"issuers at different places", tokenRules("p", ruleA+`, {issuer: "`+issuerB+`", jwks: 'KEYS_B', fromHeaders: [{name: X-Token}]}`), `
			200 GET /
			200 GET / | Authorization: Bearer <ann>
			200 GET / | X-Token: <b>
			200 GET / | Authorization: Bearer <ann> | X-Token: <b>
			401 GET / | Authorization: Bearer <expired> | X-Token: <b>
			401 GET / | Authorization: Bearer <ann> | X-Token: x
			401 GET / | Authorization: Bearer <b>
			401 GET / | X-Token: <ann>
			401 GET / | Authorization: Bearer <ann> | X-Token: <ann>
			200 OPTIONS / | Origin: http://x | Access-Control-Request-Method: GET | X-Token: x
		`},
	}
}

// tokenOutputVerdicts returns rules that change the request. The application refuses requests that
// do not have what the header Want says.
func tokenOutputVerdicts() []verdict {
	const outputs = `, outputPayloadToHeader: X-Payload, outputClaimToHeaders: [{header: X-User, claim: sub}, {header: X-Realm, claim: realm.name}, {header: X-Flag, claim: flag}]`
	return []verdict{
		{"tokens are removed", tokenRules("r", ruleA), `
			200 GET / | Authorization: Bearer <ann> | Want: Authorization=
			200 GET /?access_token=<ann>&x=1 | Want: ?access_token=
			200 GET /?access_token=<ann>&x=1 | Want: ?x=1
			200 GET / | Authorization: Basic YTpi | Want: Authorization=Basic YTpi
			500 GET / | Want: X-User=ann
		`},
		{"tokens are forwarded", tokenRules("f", `{issuer: "`+issuerA+`", jwks: 'KEYS_A', forwardOriginalToken: true}`), `
			200 GET / | Authorization: Bearer <ann> | Want: Authorization=Bearer <ann>
			200 GET /?access_token=<ann> | Want: ?access_token=<ann>
		`},
		{"claims are written to headers", tokenRules("o", `{issuer: "`+issuerA+`", jwks: 'KEYS_A'`+outputs+`}`), `
			200 GET / | Authorization: Bearer <claims> | Want: X-User=ann
			200 GET / | Authorization: Bearer <claims> | Want: X-Realm=main
			200 GET / | Authorization: Bearer <claims> | Want: X-Flag=true
			500 GET / | Authorization: Bearer <claims> | Want: X-Payload=
			200 GET / | Authorization: Bearer <ann> | Want: X-Realm= | X-Realm: forged
			200 GET / | Authorization: Bearer <ann> | Want: X-User=ann | X-User: eve
			200 GET / | Want: X-User= | X-User: eve
			200 GET / | Want: X-Payload= | X-Payload: eve | x-payload: eve
			200 OPTIONS / | Want: X-User= | X-User: eve | Origin: http://x | Access-Control-Request-Method: GET
		`},
		{"a list and an object in headers", tokenRules("o", `{issuer: "`+issuerA+`", jwks: 'KEYS_A', outputClaimToHeaders: [{header: X-Role, claim: role}, {header: X-Realm, claim: realm}]}`) + "---\n" +
			policy("p", `{rules: [{when: [{key: "request.headers[x-role]", values: ["WyJ+fn4iXQ=="]}], to: [{operation: {methods: [GET]}}]},
  {when: [{key: "request.headers[x-realm]", values: ["eyJ*"]}], to: [{operation: {methods: [PUT]}}]}]}`), `
			200 GET / | Authorization: Bearer <role-odd>
			200 PUT / | Authorization: Bearer <claims>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"no issuer forges the claims of another", tokenRules("o", ruleA+`, {issuer: "`+issuerB+`", jwks: 'KEYS_B', outputClaimToHeaders: [{header: X-User, claim: sub}]}`), `
			200 GET / | Authorization: Bearer <ann> | Want: X-User= | X-User: eve
			200 GET / | Authorization: Bearer <b> | Want: X-User=ann | X-User: eve
		`},
		{"one header for two issuers at different places", tokenRules("o", `{issuer: "`+issuerA+`", jwks: 'KEYS_A', outputClaimToHeaders: [{header: X-User, claim: sub}]},
  {issuer: "`+issuerB+`", jwks: 'KEYS_B', fromHeaders: [{name: X-Token}], outputClaimToHeaders: [{header: X-User, claim: iss}]}`), `
			200 GET / | Authorization: Bearer <bob> | Want: X-User=bob
			200 GET / | X-Token: <b> | Want: X-User=https://a.example/b
			200 GET / | X-Token: <b> | Want: X-Token=
			200 GET / | Want: X-User= | X-User: eve
		`},
	}
}

func oneIssuer() string {
	return tokenRules("one", `{issuer: "`+issuerA+`", jwks: 'KEYS_A', spaceDelimitedClaims: [rights]}`) + "---\n"
}

// requestPrincipalVerdicts returns policies on the principals of tokens.
func requestPrincipalVerdicts() []verdict {
	both := tokenRules("both", ruleA+", "+ruleB) + "---\n"
	one := oneIssuer()
	from := func(principals string) string {
		return policy("p", `{rules: [{from: [{source: {requestPrincipals: [`+principals+`]}}]}]}`)
	}
	return []verdict{
		{"any request principal", both + from(`"*"`), `
			403 GET /
			200 GET / | Authorization: Bearer <ann>
			200 GET / | Authorization: Bearer <b>
			403 GET / | Authorization: Bearer <nobody>
			403 GET / | Authorization: Bearer <empty>
			401 GET / | Authorization: Bearer <expired>
			403 GET / | X-Token: <ann>
			0 GET / | port tcp
		`},
		{"a request principal", both + from(`"https://a.example/ann"`), `
			200 GET / | Authorization: Bearer <ann>
			403 GET / | Authorization: Bearer <bob>
			403 GET / | Authorization: Bearer <b>
			403 GET / | Authorization: Bearer <nobody>
			403 GET /
		`},
		{"an issuer with a slash", both + from(`"https://a.example/b/ann"`), `
			200 GET / | Authorization: Bearer <b>
			403 GET / | Authorization: Bearer <imitate>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"a subject with a slash", both + from(`"https://a.example/team/ann"`), `
			200 GET / | Authorization: Bearer <slash>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"prefixes", both + from(`"https://a.example/b*"`), `
			200 GET / | Authorization: Bearer <bob>
			403 GET / | Authorization: Bearer <b>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"all subjects of an issuer", both + from(`"https://a.example/b/*"`), `
			200 GET / | Authorization: Bearer <b>
			403 GET / | Authorization: Bearer <imitate>
			403 GET / | Authorization: Bearer <bob>
		`},
		{"all issuers below a path", both + from(`"https://a*"`), `
			200 GET / | Authorization: Bearer <b>
			200 GET / | Authorization: Bearer <ann>
			403 GET / | Authorization: Bearer <nobody>
		`},
		{"suffixes", both + from(`"*/ann"`), `
			200 GET / | Authorization: Bearer <ann>
			200 GET / | Authorization: Bearer <b>
			403 GET / | Authorization: Bearer <slash>
			403 GET / | Authorization: Bearer <bob>
		`},
		{"suffixes with an issuer", both + from(`"*/b/ann"`), `
			200 GET / | Authorization: Bearer <b>
			403 GET / | Authorization: Bearer <ann>
			403 GET / | Authorization: Bearer <slash>
		`},
		{"denied request principals", both + policy("d", `{action: DENY, rules: [{from: [{source: {requestPrincipals: ["https://a.example/b/ann", "*/bob"]}}], to: [{operation: {ports: ["PORT_HTTP"]}}]}]}`), `
			403 GET / | Authorization: Bearer <b>
			403 GET / | Authorization: Bearer <imitate>
			403 GET / | Authorization: Bearer <bob>
			200 GET / | Authorization: Bearer <ann>
			200 GET /
			200 GET / | port tcp
		`},
		{"a token is required", one + policy("d", `{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}], to: [{operation: {ports: ["PORT_HTTP"]}}]}]}`), `
			403 GET /
			200 GET / | Authorization: Bearer <ann>
			403 GET / | Authorization: Bearer <nobody>
			401 GET / | Authorization: Bearer <expired>
			403 OPTIONS / | Origin: http://x | Access-Control-Request-Method: GET | Authorization: Bearer <ann>
			200 GET / | port tcp
		`},
		{"no issuer of that principal", one + from(`"https://other.example/ann"`), `
			403 GET / | Authorization: Bearer <ann>
			401 GET / | Authorization: Bearer <foreign>
		`},
		{"identity and token", one + policy("p", `{rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/web], requestPrincipals: ["*"]}}]}]}`), `
			200 GET / | as shop/web | Authorization: Bearer <ann>
			403 GET / | as shop/web
			403 GET / | as shop/other | Authorization: Bearer <ann>
			403 GET / | Authorization: Bearer <ann>
			401 GET / | as shop/web | Authorization: Bearer <expired>
		`},
	}
}

// claimVerdicts returns policies with conditions on tokens.
func claimVerdicts() []verdict {
	one := oneIssuer()
	when := func(key, values string) string {
		return policy("p", `{rules: [{when: [{key: "`+key+`", values: [`+values+`]}]}]}`)
	}
	deny := func(key, values string) string {
		return policy("p", `{action: DENY, rules: [{to: [{operation: {ports: ["PORT_HTTP"]}}], when: [{key: "`+key+`", `+values+`}]}]}`)
	}
	return []verdict{
		{"the condition on the principal", one + when("request.auth.principal", `"https://a.example/ann"`), `
			200 GET / | Authorization: Bearer <ann>
			403 GET / | Authorization: Bearer <bob>
			403 GET /
		`},
		{"audiences in a condition", one + when("request.auth.audiences", `web`), `
			200 GET / | Authorization: Bearer <web>
			200 GET / | Authorization: Bearer <lists>
			403 GET / | Authorization: Bearer <ann>
			403 GET /
		`},
		{"presenters", one + when("request.auth.presenter", `app`), `
			200 GET / | Authorization: Bearer <azp>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"a claim", one + when("request.auth.claims[group]", `admin, "x*"`), `
			200 GET / | Authorization: Bearer <claims>
			403 GET / | Authorization: Bearer <ann>
			403 GET /
		`},
		{"a claim that is a list", one + when("request.auth.claims[groups]", `ops`), `
			200 GET / | Authorization: Bearer <claims>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"any value of a claim", one + when("request.auth.claims[groups]", `"*"`), `
			200 GET / | Authorization: Bearer <claims>
			403 GET / | Authorization: Bearer <ann>
			403 GET /
		`},
		{"a nested claim", one + when("request.auth.claims[realm][roles]", `writer`), `
			200 GET / | Authorization: Bearer <claims>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"a claim with dots", one + when("request.auth.claims[https://x.example/role]", `boss`), `
			200 GET / | Authorization: Bearer <claims>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"a scope", one + when("request.auth.claims[scope]", `write`), `
			200 GET / | Authorization: Bearer <claims>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"a part of a scope", one + when("request.auth.claims[scope]", `writ`), `
			403 GET / | Authorization: Bearer <claims>
		`},
		{"a list in a string", one + when("request.auth.claims[rights]", `"y"`), `
			200 GET / | Authorization: Bearer <claims>
			403 GET / | Authorization: Bearer <ann>
		`},
		{"a claim that is not a string", one + when("request.auth.claims[flag]", `"true"`), `
			403 GET / | Authorization: Bearer <claims>
		`},
		{"a denied claim that is not a string", one + deny("request.auth.claims[flag]", `values: ["true"]`), `
			403 GET / | Authorization: Bearer <claims>
			200 GET / | Authorization: Bearer <ann>
			200 GET /
		`},
		{"a denied number", one + deny("request.auth.claims[level]", `values: ["3"]`), `
			403 GET / | Authorization: Bearer <claims>
			200 GET / | Authorization: Bearer <ann>
		`},
		{"a required claim", one + deny("request.auth.claims[group]", `notValues: [admin]`), `
			200 GET / | Authorization: Bearer <claims>
			403 GET / | Authorization: Bearer <ann>
			403 GET /
			401 GET / | Authorization: Bearer <expired>
		`},
		{"claims of a token that nobody validates", policy("p", `{rules: [{when: [{key: "request.auth.claims[group]", values: ["*"]}]}, {from: [{source: {requestPrincipals: ["*"]}}]}]}`), `
			403 GET / | Authorization: Bearer <claims>
			403 GET /
		`},
	}
}
