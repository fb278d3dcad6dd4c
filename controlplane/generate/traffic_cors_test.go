// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

func corsRules() []routing {
	const (
		preflight = "; access-control-request-method: POST"
		allow     = "Access-Control-Allow-Origin: "
	)
	return []routing{
		{name: "cors", http: `
- match: [{uri: {prefix: /full}}]
  corsPolicy:
    allowOrigins: [{exact: "https://exact.test"}, {prefix: "https://prefix"}, {regex: "https://[a-z]+[.]regex[.]test"}]
    allowMethods: [POST, GET]
    allowHeaders: [x-one, x-two]
    exposeHeaders: [x-backend, x-other]
    maxAge: 86400s
    allowCredentials: true
  $A
- match: [{uri: {prefix: /any}}]
  corsPolicy: {allowOrigins: [{exact: "*"}], allowMethods: ["*"]}
  $A
- match: [{uri: {prefix: /old}}]
  corsPolicy: {allowOrigin: ["https://old.test"], allowCredentials: false}
  $A
- match: [{uri: {prefix: /forward}}]
  corsPolicy: {allowOrigins: [{exact: "https://exact.test"}], unmatchedPreflights: FORWARD}
  $A
- match: [{uri: {prefix: /ignore}}]
  corsPolicy: {allowOrigins: [{exact: "https://exact.test"}], unmatchedPreflights: IGNORE}
  $A
- match: [{uri: {prefix: /nobody}}]
  corsPolicy: {allowMethods: [GET]}
  $A
- $A`, requests: []request{
			{
				send: "GET /full", header: "origin: https://exact.test", to: "a",
				answer: allow + "https://exact.test; Access-Control-Allow-Credentials: true; Access-Control-Expose-Headers: x-backend,x-other; -Access-Control-Allow-Methods",
			},
			{send: "GET /full", header: "origin: https://prefix.anything", to: "a", answer: allow + "https://prefix.anything"},
			{send: "GET /full", header: "origin: https://www.regex.test", to: "a", answer: allow + "https://www.regex.test"},
			{send: "GET /full", header: "origin: https://www.regex.test.evil", to: "a", answer: "-Access-Control-Allow-Origin"},
			{send: "GET /full", header: "origin: https://exact.test.evil", to: "a", answer: "-Access-Control-Allow-Origin"},
			{send: "GET /full", to: "a", answer: "-Access-Control-Allow-Origin"},
			{
				send: "OPTIONS /full", header: "origin: https://exact.test" + preflight,
				answer: allow + "https://exact.test; Access-Control-Allow-Methods: POST,GET; Access-Control-Allow-Headers: x-one,x-two; " +
					"Access-Control-Max-Age: 86400; Access-Control-Allow-Credentials: true",
			},
			{send: "OPTIONS /full", header: "origin: https://evil.test" + preflight, to: "a", answer: "-Access-Control-Allow-Origin"},
			{send: "OPTIONS /full", header: "origin: https://exact.test", to: "a", answer: allow + "https://exact.test"},
			{send: "OPTIONS /any", header: "origin: https://any.test" + preflight, answer: allow + "https://any.test; Access-Control-Allow-Methods: POST; -Access-Control-Max-Age"},
			{send: "GET /old", header: "origin: https://old.test", to: "a", answer: allow + "https://old.test; -Access-Control-Allow-Credentials"},
			{send: "GET /old", header: "origin: https://new.test", to: "a", answer: "-Access-Control-Allow-Origin"},
			{send: "OPTIONS /forward", header: "origin: https://evil.test" + preflight, to: "a"},
			{send: "OPTIONS /ignore", header: "origin: https://evil.test" + preflight, answer: "-Access-Control-Allow-Origin"},
			{send: "OPTIONS /ignore", header: "origin: https://exact.test" + preflight, answer: allow + "https://exact.test"},
			{send: "GET /ignore", header: "origin: https://evil.test", to: "a", answer: "-Access-Control-Allow-Origin"},
			{send: "GET /nobody", header: "origin: https://exact.test", to: "a", answer: "-Access-Control-Allow-Origin"},
			{send: "OPTIONS /", header: "origin: https://exact.test" + preflight, to: "a", answer: "-Access-Control-Allow-Origin"},
		}},
	}
}

func mirrorRules() []routing {
	return []routing{
		{name: "mirror", http: `
- match: [{uri: {prefix: /one}}]
  mirror: {host: copy.other.svc.cluster.local}
  $A
- match: [{uri: {prefix: /two}}]
  mirrors: [{destination: {host: copy.other.svc.cluster.local}}, {destination: {host: copy2}, percentage: {value: 100}}]
  $A
- match: [{uri: {prefix: /percentage}}]
  mirror: {host: copy2}
  mirrorPercentage: {value: 100}
  $A
- match: [{uri: {prefix: /old}}]
  mirror: {host: copy2}
  mirrorPercent: 100
  $A
- match: [{uri: {prefix: /lost}}]
  mirror: {host: nobody.example.com}
  $A
- $A`, requests: []request{
			{send: "GET /one?q=1", to: "a", copies: []string{"copy"}},
			{send: "POST /two", to: "a", copies: []string{"copy", "copy2"}},
			{send: "GET /percentage", to: "a", copies: []string{"copy2"}},
			{send: "GET /old", to: "a", copies: []string{"copy2"}},
			{send: "GET /lost", to: "a"},
			{send: "GET /", to: "a"},
		}},
	}
}

func delegateRules() []routing {
	return []routing{
		{name: "delegate", http: `
- name: root
  match: [{name: shop, uri: {prefix: /shop}, headers: {x-tenant: {exact: blue}}}]
  delegate: {name: shop, namespace: other}
  timeout: 0.3s
  headers: {request: {set: {x-from: root}}, response: {set: {x-route: "%ROUTE_NAME%"}}}
- match: [{uri: {prefix: /twice}}]
  delegate: {name: shop, namespace: other}
- match: [{uri: {prefix: /here}}]
  delegate: {name: here}
- match: [{uri: {prefix: /missing}}]
  delegate: {name: missing}
- match: [{uri: {prefix: /private}}]
  delegate: {name: private, namespace: other}
- match: [{uri: {prefix: /nested}}]
  delegate: {name: nested}
- $NO`, objects: `
kind: VirtualService
metadata: {name: shop, namespace: other}
spec:
  http:
  - name: narrow
    match: [{name: v2, uri: {prefix: /shop/v2}, method: {exact: GET}}]
    headers: {request: {set: {x-from: delegate}}}
    route: [{destination: {host: shop.default.svc.cluster.local, subset: v2}}]
  - match: [{uri: {prefix: /elsewhere}}]
    directResponse: {status: 410}
  - match: [{uri: {exact: /shop/far}}]
    route: [{destination: {host: far}}]
    rewrite: {authority: far.inner}
  - route: [{destination: {host: shop.default.svc.cluster.local, subset: v1}}]
---
kind: VirtualService
metadata: {name: here, namespace: default}
spec: {http: [{route: [{destination: {host: one}}]}]}
---
kind: VirtualService
metadata: {name: private, namespace: other}
spec: {exportTo: ["."], http: [{directResponse: {status: 200}}]}
---
kind: VirtualService
metadata: {name: nested, namespace: default}
spec: {http: [{delegate: {name: here}}]}`, requests: []request{
			{send: "GET /shop/v2/x", header: "x-tenant: blue", to: "b", arrives: "X-From: delegate", answer: "-X-Route"},
			{send: "POST /shop/v2/x", header: "x-tenant: blue", to: "a", arrives: "X-From: root", answer: "X-Route: root.shop"},
			{send: "GET /shop/v2", status: 404},
			{send: "GET /shop/x", header: "x-tenant: blue; x-test-wait: 20s", status: 504, to: "a", atMost: 10 * 1e9},
			{send: "GET /shopping", header: "x-tenant: blue", to: "a"},
			{send: "GET /shop/far", header: "x-tenant: blue", to: "far", asked: "far.inner"},
			{send: "GET /elsewhere", header: "x-tenant: blue", status: 404},
			{send: "GET /twice", to: "a", arrives: "-X-From"},
			{send: "GET /here", to: "one"},
			{send: "GET /missing", status: 503},
			{send: "GET /private", status: 503},
			{send: "GET /nested", status: 503},
		}},
	}
}
