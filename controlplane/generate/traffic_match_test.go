// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

func matchRules() []routing {
	return []routing{
		{name: "uri-exact", http: `
- match: [{uri: {exact: /a}}]
  $A
- $NO`, requests: []request{
			{send: "GET /a", to: "a"},
			{send: "GET /a?x=1", to: "a"},
			{send: "GET /a/", status: 404},
			{send: "GET /a/b", status: 404},
			{send: "GET /A", status: 404},
		}},
		{name: "uri-prefix", http: `
- match: [{uri: {prefix: /p}}]
  $A
- $NO`, requests: []request{
			{send: "GET /p", to: "a"},
			{send: "GET /p/q?x=1", to: "a"},
			{send: "GET /pq", to: "a"},
			{send: "GET /P", status: 404},
			{send: "GET /", status: 404},
		}},
		{name: "uri-regex", http: `
- match: [{uri: {regex: "/items/[0-9]+"}}]
  $A
- match: [{uri: {regex: "(?i)/any/.*"}}]
  $B
- $NO`, requests: []request{
			{send: "GET /items/12", to: "a"},
			{send: "GET /items/12?x=y", to: "a"},
			{send: "GET /items/12/z", status: 404},
			{send: "GET /items/x", status: 404},
			{send: "GET /ANY/thing", to: "b"},
		}},
		{name: "uri-case", http: `
- match: [{uri: {exact: /Exact}, ignoreUriCase: true}, {uri: {prefix: /Pre}, ignoreUriCase: true}]
  $A
- $NO`, requests: []request{
			{send: "GET /eXaCT", to: "a"},
			{send: "GET /pre/x", to: "a"},
			{send: "GET /exact/", status: 404},
		}},
		{name: "segments", semantics: "gateway", http: `
- match: [{uri: {prefix: /foo}}]
  $A
- match: [{uri: {prefix: /bar/}}]
  $B
- match: [{uri: {exact: /only}}]
  $A
- $NO`, requests: []request{
			{send: "GET /foo", to: "a"},
			{send: "GET /foo/", to: "a"},
			{send: "GET /foo/x?y=1", to: "a"},
			{send: "GET /foo?y=1", to: "a"},
			{send: "GET /foobar", status: 404},
			{send: "GET /bar", to: "b"},
			{send: "GET /bar/x", to: "b"},
			{send: "GET /bars", status: 404},
			{send: "GET /only", to: "a"},
		}},
		{name: "segments-ingress", semantics: "ingress", http: `
- match: [{uri: {prefix: /foo}}]
  $A
- match: [{uri: {prefix: /}}]
  $B`, requests: []request{
			{send: "GET /foo/x", to: "a"},
			{send: "GET /foobar", to: "b"},
			{send: "GET /", to: "b"},
		}},
	}
}

func matchOrderRules() []routing {
	return []routing{
		{name: "order", http: `
- match: [{uri: {prefix: /x}}]
  $A
- match: [{uri: {prefix: /x/y}}]
  $B
- $B
- $NO`, requests: []request{
			{send: "GET /x/y", to: "a"},
			{send: "GET /z", to: "b"},
		}},
		{name: "and-or", http: `
- match:
  - {uri: {prefix: /x}, method: {exact: POST}, headers: {x-a: {exact: "1"}}}
  - {uri: {prefix: /y}}
  $A
- $NO`, requests: []request{
			{send: "POST /x", header: "x-a: 1", to: "a"},
			{send: "POST /x", header: "x-a: 2", status: 404},
			{send: "GET /x", header: "x-a: 1", status: 404},
			{send: "GET /y", to: "a"},
		}},
		{name: "names", http: `
- name: rule
  match: [{name: first, uri: {prefix: /first}}, {uri: {prefix: /second}}]
  $A
  headers: {response: {set: {x-route: "%ROUTE_NAME%"}}}
- match: [{name: alone, uri: {prefix: /third}, statPrefix: third}]
  $A
  headers: {response: {set: {x-route: "%ROUTE_NAME%"}}}`, requests: []request{
			{send: "GET /first", to: "a", answer: "X-Route: rule.first"},
			{send: "GET /second", to: "a", answer: "X-Route: rule"},
			{send: "GET /third", to: "a", answer: "X-Route: .alone"},
			{send: "GET /nothing", status: 404},
		}},
	}
}

func matchValueRules() []routing {
	return []routing{
		{name: "method", http: `
- match: [{method: {exact: POST}}]
  $A
- match: [{method: {prefix: PA}}, {method: {regex: "PUT|DELETE"}}]
  $B
- $NO`, requests: []request{
			{send: "POST /", to: "a"},
			{send: "PATCH /", to: "b"},
			{send: "PUT /", to: "b"},
			{send: "DELETE /", to: "b"},
			{send: "GET /", status: 404},
		}},
		{name: "scheme", http: `
- match: [{scheme: {exact: https}}]
  $B
- match: [{scheme: {regex: "ht+p"}}]
  $A
- $NO`, requests: []request{
			{send: "GET /", to: "a"},
		}},
		{name: "authority", spec: "hosts: [authority.test, www.authority.test, x.authority.test]", http: `
- match: [{authority: {exact: www.authority.test}}]
  $A
- match: [{authority: {regex: "[xyz][.]auth.*"}}]
  $B
- match: [{authority: {prefix: auth}, uri: {prefix: /p}}]
  $B
- $NO`, requests: []request{
			{send: "GET /", host: "www.authority.test", to: "a"},
			{send: "GET /", host: "x.authority.test", to: "b"},
			{send: "GET /p", to: "b"},
			{send: "GET /", status: 404},
		}},
		{name: "headers", http: `
- match: [{headers: {x-exact: {exact: one}}}]
  $A
- match: [{headers: {x-prefix: {prefix: "on"}}}]
  $B
- match: [{headers: {x-regex: {regex: "o[mn]+e"}}}]
  $A
- match: [{headers: {x-there: {}}}]
  $B
- match: [{headers: {x-star: {regex: "*"}}}]
  $A
- match: [{headers: {x-one: {exact: "1"}, x-two: {exact: "2"}}}]
  $B
- $NO`, requests: []request{
			{send: "GET /", header: "x-exact: one", to: "a"},
			{send: "GET /", header: "x-exact: One", status: 404},
			{send: "GET /", header: "x-exact: one more", status: 404},
			{send: "GET /", header: "x-prefix: once", to: "b"},
			{send: "GET /", header: "x-prefix: no", status: 404},
			{send: "GET /", header: "x-regex: omne", to: "a"},
			{send: "GET /", header: "x-regex: one more", status: 404},
			{send: "GET /", header: "x-there: anything", to: "b"},
			{send: "GET /", header: "x-there:", to: "b"},
			{send: "GET /", header: "x-star: anything", to: "a"},
			{send: "GET /", header: "x-one: 1; x-two: 2", to: "b"},
			{send: "GET /", header: "x-one: 1", status: 404},
			{send: "GET /", status: 404},
		}},
	}
}

func matchOtherValueRules() []routing {
	return []routing{
		{name: "without", http: `
- match: [{uri: {prefix: /exact}, withoutHeaders: {x-a: {exact: "1"}}}]
  $A
- match: [{uri: {prefix: /there}, withoutHeaders: {x-a: {}}}]
  $A
- match: [{uri: {prefix: /prefix}, withoutHeaders: {x-a: {prefix: a}}}]
  $A
- match: [{uri: {prefix: /regex}, withoutHeaders: {x-a: {regex: "a+"}}}]
  $A
- $NO`, requests: []request{
			{send: "GET /exact", to: "a"},
			{send: "GET /exact", header: "x-a: 2", to: "a"},
			{send: "GET /exact", header: "x-a: 1", status: 404},
			{send: "GET /there", to: "a"},
			{send: "GET /there", header: "x-a: 1", status: 404},
			{send: "GET /prefix", to: "a"},
			{send: "GET /prefix", header: "x-a: b", to: "a"},
			{send: "GET /prefix", header: "x-a: ab", status: 404},
			{send: "GET /regex", to: "a"},
			{send: "GET /regex", header: "x-a: aa", status: 404},
		}},
		{name: "query", http: `
- match: [{queryParams: {exact: {exact: one}}}]
  $A
- match: [{queryParams: {prefix: {prefix: "on"}}}]
  $B
- match: [{queryParams: {regex: {regex: "[0-9]+"}}}]
  $A
- match: [{queryParams: {there: {}}}]
  $B
- match: [{queryParams: {empty: {exact: ""}}}]
  $A
- $NO`, requests: []request{
			{send: "GET /?exact=one", to: "a"},
			{send: "GET /?exact=ones", status: 404},
			{send: "GET /?a=b&exact=one", to: "a"},
			{send: "GET /?prefix=once", to: "b"},
			{send: "GET /?regex=123", to: "a"},
			{send: "GET /?regex=a123", status: 404},
			{send: "GET /?there", to: "b"},
			{send: "GET /?there=x", to: "b"},
			{send: "GET /?empty", to: "a"},
			{send: "GET /?empty=x", status: 404},
		}},
	}
}

// matchCallerRules returns rules about the port and the caller, which is svc-0001 of the namespace
// default.
func matchCallerRules() []routing {
	return []routing{
		{name: "port", spec: "hosts: [ports]", http: `
- match: [{port: 9090, uri: {prefix: /admin}}]
  $A
- match: [{port: 80, uri: {prefix: /web}}]
  $B
- route: [{destination: {host: ports}}]`, requests: []request{
			{send: "GET /admin", host: "ports:9090", to: "a"},
			{send: "GET /admin", host: "ports", to: "p80"},
			{send: "GET /web", host: "ports", to: "b"},
			{send: "GET /web", host: "ports:9090", to: "p9090"},
		}},
		{name: "source", http: `
- match: [{uri: {prefix: /mine}, sourceLabels: {app: svc-0001}}, {uri: {prefix: /home}, sourceNamespace: default}]
  $A
- match: [{uri: {prefix: /other}, sourceLabels: {app: other}}, {uri: {prefix: /away}, sourceNamespace: other}]
  $B
- $NO`, requests: []request{
			{send: "GET /mine", to: "a"},
			{send: "GET /home", to: "a"},
			{send: "GET /other", status: 404},
			{send: "GET /away", status: 404},
		}},
		{name: "gateways", spec: "hosts: [gateways.test]\ngateways: [mesh, edge]", http: `
- match: [{uri: {prefix: /edge}, gateways: [edge]}]
  $B
- match: [{uri: {prefix: /mesh}, gateways: [mesh]}]
  $A
- match: [{uri: {prefix: /both}, gateways: [edge, mesh]}]
  $A
- match: [{uri: {prefix: /labels}, gateways: [edge, mesh], sourceLabels: {app: other}}]
  $B
- $NO`, requests: []request{
			{send: "GET /edge", status: 404},
			{send: "GET /mesh", to: "a"},
			{send: "GET /both", to: "a"},
			{send: "GET /labels", status: 404},
		}},
		{name: "not-for-sidecars", spec: "hosts: [not-for-sidecars.test]\ngateways: [edge]", http: `- $A`, requests: []request{
			{send: "GET /", status: 502},
		}},
		{name: "exported", spec: "hosts: [exported.test]\nexportTo: [default]", http: `- $A`, requests: []request{
			{send: "GET /", to: "a"},
		}},
		{name: "exported-away", spec: "hosts: [exported-away.test]\nexportTo: [other]", http: `- $A`, requests: []request{
			{send: "GET /", status: 502},
		}},
	}
}
