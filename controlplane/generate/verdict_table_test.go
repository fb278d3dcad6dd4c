// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

// callerVerdicts returns policies with attributes of callers.
func callerVerdicts() []verdict {
	return []verdict{
		{"no rules allow nothing", policy("none", "{}"), `
			403 GET / | as default/a
			403 GET /
			0 GET / | port tcp | as default/a
		`},
		{"an empty rule allows everything", policy("all", "{rules: [{}]}"), `
			200 GET /
			200 GET / | port tcp
		`},
		{"an empty rule denies everything", policy("all", "{action: DENY, rules: [{}]}"), `
			403 GET / | as default/a
			0 GET / | port tcp
		`},
		{"DENY comes before ALLOW", policy("some", `{rules: [{to: [{operation: {methods: [GET, POST]}}]}]}`) + "---\n" + policy("not", `{action: DENY, rules: [{to: [{operation: {paths: [/admin*]}}]}]}`), `
			200 GET /
			200 POST /x
			403 PUT /
			403 GET /admin
			403 GET /admin/users
			403 POST /adminx
			0 GET / | port tcp
		`},
		{"principals", policy("p", `{rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/web]}}]}]}`), `
			200 GET / | as shop/web
			403 GET / | as shop/web2
			403 GET / | as shop/we
			403 GET / | as other/web
			403 GET /
			200 GET / | port tcp | as shop/web
			0 GET / | port tcp | as shop/web2
			0 GET / | port tcp
			403 GET / | X-Forwarded-Client-Cert: URI=spiffe://cluster.local/ns/shop/sa/web
		`},
		{"principals with wildcards", policy("p", `{rules: [{from: [{source: {principals: ["cluster.local/ns/shop/*"]}}]}, {from: [{source: {principals: ["*/sa/admin"]}}]}]}`), `
			200 GET / | as shop/web
			200 GET / | as far/admin
			403 GET / | as far/web
			403 GET / | as shop2/web
			403 GET / | as far/administrator
		`},
		{"any principal", policy("p", `{rules: [{from: [{source: {principals: ["*"]}}]}]}`), `
			200 GET / | as far/web
			403 GET /
		`},
		{"denied principals", policy("p", `{action: DENY, rules: [{from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/web]}}]}]}`), `
			200 GET / | as shop/web
			403 GET / | as shop/other
			403 GET /
		`},
		{"namespaces", policy("n", `{rules: [{from: [{source: {namespaces: [shop, "dev-*"]}}]}]}`), `
			200 GET / | as shop/web
			200 GET / | as dev-1/web
			403 GET / | as shop2/web
			403 GET / | as xshop/web
			403 GET / | as dev/web
			403 GET /
			403 GET / | as evil/ns-shop
		`},
		{"dots in names are no wildcards", policy("n", `{rules: [{from: [{source: {serviceAccounts: [shop/a.b]}}]}, {from: [{source: {namespaces: ["x.y"]}}]}]}`), `
			200 GET / | as shop/a.b
			403 GET / | as shop/aXb
			403 GET / | as xzy/web
		`},
		{"service accounts", policy("n", `{rules: [{from: [{source: {serviceAccounts: [web, shop/api]}}]}]}`), `
			200 GET / | as default/web
			200 GET / | as shop/api
			403 GET / | as shop/web
			403 GET / | as default/api
			403 GET /
		`},
		{"names that no service account has", policy("n", `{rules: [{from: [{source: {serviceAccounts: [A_b, "a b", A/b]}}]}]}`), `
			403 GET / | as default/a
			403 GET /
			0 GET / | port tcp | as default/a
		`},
		{"denied names that no service account has", policy("n", `{action: DENY, rules: [{from: [{source: {serviceAccounts: [A_b, "a b", A/b]}}]}]}`), `
			200 GET / | as default/a
			200 GET / | port tcp
		`},
		{"addresses", policy("i", `{rules: [{from: [{source: {ipBlocks: [127.0.0.0/8], notIpBlocks: ["10.0.0.1"]}}]}]}`), `
			200 GET /
			200 GET / | port tcp
		`},
		{"other addresses", policy("i", `{rules: [{from: [{source: {ipBlocks: ["10.0.0.0/8", "2001:db8::1"]}}]}]}`), `
			403 GET /
			403 GET / | X-Forwarded-For: 10.0.0.1
			0 GET / | port tcp
		`},
		{"hosts", policy("h", `{rules: [{to: [{operation: {hosts: [a.example.com, "*.b.example.com"]}}]}]}`), `
			200 GET / | host a.example.com
			200 GET / | host A.Example.Com
			200 GET / | host x.b.example.com
			403 GET / | host b.example.com.evil
			403 GET / | host example.com
			0 GET / | port tcp | host a.example.com
		`},
	}
}

// requestVerdicts returns policies with attributes of requests.
func requestVerdicts() []verdict {
	return []verdict{
		{"denied hosts", policy("h", `{action: DENY, rules: [{to: [{operation: {hosts: [a.example.com], ports: ["PORT_HTTP"]}}]}]}`), `
			403 GET / | host a.example.com
			403 GET / | host A.EXAMPLE.COM
			403 GET / | host a.example.com:80
			403 GET / | host a.example.com.
			403 GET / | host a.example.com.:8080
			200 GET / | host aXexample.com
			200 GET / | host b.example.com
			200 GET / | port tcp | host a.example.com
		`},
		{"methods", policy("m", `{rules: [{to: [{operation: {notMethods: [DELETE]}}]}]}`), `
			200 GET /
			200 POST /
			403 DELETE /
			400 delete /
			403 delete / | h2
			403 Delete / | h2
			200 GET / | h2
		`},
		{"denied methods", policy("m", `{action: DENY, rules: [{to: [{operation: {methods: [DELETE], ports: ["PORT_HTTP"]}}]}]}`), `
			200 GET /
			403 DELETE /
			403 delete / | h2
			200 get / | h2
			200 DELETE / | port tcp
		`},
		{"a denied method on a port of streams", policy("m", `{action: DENY, rules: [{to: [{operation: {methods: [DELETE]}}]}]}`), `
			200 GET /
			0 GET / | port tcp
		`},
		{"paths", policy("p", `{rules: [{to: [{operation: {paths: [/a, "/b/*", "*/c"]}}]}]}`), `
			200 GET /a
			200 GET /a?x=/b
			403 GET /a/
			403 GET /A
			200 GET /b/
			200 GET /b/x/y
			403 GET /b
			200 GET /x/c
			403 GET /x/c/d
			403 GET /b/../x
			200 GET /x/../a
		`},
		{"templates of paths", policy("p", `{rules: [{to: [{operation: {paths: ["/users/{*}/posts", "/files/{**}", "/x/{*}/{**}/end.txt"]}}]}]}`), `
			200 GET /users/1/posts
			200 GET /users/*/posts
			403 GET /users//posts
			403 GET /users/1/2/posts
			200 GET /files/
			200 GET /files/a/b
			403 GET /files
			200 GET /x/1/2/3/end.txt
			403 GET /x/1/2/3/endXtxt
		`},
		{"ports", policy("p", `{rules: [{to: [{operation: {ports: ["PORT_HTTP"]}}]}]}`), `
			200 GET /
			0 GET / | port tcp
		`},
	}
}

// conditionVerdicts returns policies with conditions, and with other actions.
func conditionVerdicts() []verdict {
	return []verdict{
		{"headers", policy("w", `{rules: [{when: [{key: "request.headers[x-user]", values: [ann, "b*"]}]}]}`), `
			200 GET / | X-User: ann
			200 GET / | X-User: bob
			403 GET / | X-User: Ann
			403 GET / | X-User: anna
			403 GET /
			0 GET / | port tcp | X-User: ann
		`},
		{"denied headers", policy("w", `{action: DENY, rules: [{to: [{operation: {ports: ["PORT_HTTP"]}}], when: [{key: "request.headers[x-user]", values: [ann]}]}]}`), `
			403 GET / | X-User: ann
			403 GET / | X-User: x | X-User: ann
			403 GET / | X-User: ann | X-User: x
			403 GET / | X-User: x,ann , y
			200 GET / | X-User: anna
			200 GET / | X-User: joann
			200 GET /
		`},
		{"required headers", policy("w", `{action: DENY, rules: [{to: [{operation: {ports: ["PORT_HTTP"]}}], when: [{key: "request.headers[x-user]", notValues: ["*"]}]}]}`), `
			200 GET / | X-User: ann
			403 GET /
		`},
		{"conditions of connections", policy("w", `{rules: [{when: [{key: source.namespace, values: [shop]}, {key: destination.port, values: ["PORT_HTTP"]}, {key: destination.ip, values: [127.77.0.0/16]}]}]}`), `
			200 GET / | as shop/web
			403 GET / | as other/web
			0 GET / | port tcp | as shop/web
		`},
		{"tokens that nobody has validated", policy("j", `{rules: [{from: [{source: {requestPrincipals: ["*"]}}]}, {when: [{key: "request.auth.claims[iss]", values: ["*"]}]}]}`), `
			403 GET /
			403 GET / | Authorization: Bearer x.y.z
		`},
		{"no token", policy("j", `{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}], to: [{operation: {ports: ["PORT_HTTP"]}}]}]}`), `
			403 GET /
		`},
		{"CUSTOM without its provider denies what it matches", "# problem: no extension provider\n" + policy("c", `{action: CUSTOM, provider: {name: none}, rules: [{to: [{operation: {paths: [/ask*], ports: ["PORT_HTTP"]}}]}]}`), `
			403 GET /ask
			200 GET /other
			200 GET /ask | port tcp
		`},
		{"AUDIT denies nothing", policy("a", `{action: AUDIT, rules: [{}]}`), `
			200 GET /
			200 GET / | port tcp
		`},
	}
}
