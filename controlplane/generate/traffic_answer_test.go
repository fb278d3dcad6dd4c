// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

func redirectRules() []routing {
	return []routing{
		{name: "redirect", http: `
- match: [{uri: {prefix: /both}}]
  redirect: {uri: /new, authority: new.test}
- match: [{uri: {prefix: /uri}}]
  redirect: {uri: /new}
- match: [{uri: {prefix: /authority}}]
  redirect: {authority: new.test}
- match: [{uri: {prefix: /scheme}}]
  redirect: {scheme: https}
- match: [{uri: {prefix: /port}}]
  redirect: {port: 8443}
- match: [{uri: {prefix: /secure-port}}]
  redirect: {scheme: https, port: 443}
- match: [{uri: {prefix: /plain-port}}]
  redirect: {uri: /p, port: 80}
- match: [{uri: {prefix: /prefix}}]
  redirect: {prefixRewrite: /moved}
- match: [{uri: {prefix: /302}}]
  redirect: {uri: /x, redirectCode: 302}
- match: [{uri: {prefix: /303}}]
  redirect: {uri: /x, redirectCode: 303}
- match: [{uri: {prefix: /307}}]
  redirect: {uri: /x, redirectCode: 307}
- match: [{uri: {prefix: /308}}]
  redirect: {uri: /x, redirectCode: 308}
- redirect: {uri: /named}
  headers: {response: {set: {x-why: moved}}}`, requests: []request{
			{send: "GET /both/x?q=1", status: 301, answer: "Location: http://new.test/new?q=1"},
			{send: "GET /uri/x", status: 301, answer: "Location: http://redirect.test/new"},
			{send: "GET /authority/x?q=1", status: 301, answer: "Location: http://new.test/authority/x?q=1"},
			{send: "GET /scheme", status: 301, answer: "Location: https://redirect.test/scheme"},
			{send: "GET /port", status: 301, answer: "Location: http://redirect.test:8443/port"},
			{send: "GET /secure-port", status: 301, answer: "Location: https://redirect.test/secure-port"},
			{send: "GET /plain-port", status: 301, answer: "Location: http://redirect.test/p"},
			{send: "GET /prefix/x?q=1", status: 301, answer: "Location: http://redirect.test/moved/x?q=1"},
			{send: "GET /302", status: 302, answer: "Location: http://redirect.test/x"},
			{send: "GET /303", status: 303, answer: "Location: http://redirect.test/x"},
			{send: "GET /307", status: 307, answer: "Location: http://redirect.test/x"},
			{send: "POST /308", status: 308, answer: "Location: http://redirect.test/x"},
			{send: "GET /", status: 301, answer: "Location: http://redirect.test/named; X-Why: moved"},
		}},
		{name: "redirect-port", spec: "hosts: [one]", http: `
- match: [{uri: {prefix: /request}}]
  redirect: {authority: new.test, derivePort: FROM_REQUEST_PORT}
- match: [{uri: {prefix: /protocol}}]
  redirect: {authority: new.test, scheme: https, derivePort: FROM_PROTOCOL_DEFAULT}
- $NO`, requests: []request{
			{send: "GET /request", host: "one:8080", status: 301, answer: "Location: http://new.test:8080/request"},
			{send: "GET /protocol", host: "one:8080", status: 301, answer: "Location: https://new.test/protocol"},
		}},
		{name: "redirect-segments", semantics: "gateway", http: `
- match: [{uri: {prefix: /root}}]
  redirect: {prefixRewrite: /}
- match: [{uri: {prefix: /deep}}]
  redirect: {prefixRewrite: /down}
- $NO`, requests: []request{
			{send: "GET /root/x?q=1", status: 301, answer: "Location: http://redirect-segments.test/x?q=1"},
			{send: "GET /root", status: 301, answer: "Location: http://redirect-segments.test/"},
			{send: "GET /deep/x", status: 301, answer: "Location: http://redirect-segments.test/down/x"},
		}},
	}
}

func rewriteRules() []routing {
	return []routing{
		{name: "rewrite", http: `
- match: [{uri: {prefix: /old/}}]
  rewrite: {uri: /new/}
  $A
- match: [{uri: {exact: /exact}}]
  rewrite: {uri: /whole}
  $A
- match: [{uri: {regex: "/any/.*"}}]
  rewrite: {uri: /whole}
  $A
- match: [{uri: {prefix: /service/}}]
  rewrite: {uriRegexRewrite: {match: "^/service/([^/]+)(/.*)$", rewrite: '\2/instance/\1'}}
  $A
- match: [{uri: {prefix: /case/}}]
  rewrite: {uriRegexRewrite: {match: "(?i)/xxx/", rewrite: /yyy/}}
  $A
- match: [{uri: {prefix: /host}}]
  rewrite: {authority: inner.example}
  $A
- match: [{uri: {prefix: /all}}]
  rewrite: {uri: /some, authority: inner.example}
  $B
- $NO`, requests: []request{
			{send: "GET /old/x?q=1", to: "a", path: "/new/x?q=1", arrives: "X-Envoy-Original-Path: /old/x?q=1"},
			{send: "GET /exact?q=1", to: "a", path: "/whole?q=1"},
			{send: "GET /any/thing?q=1", to: "a", path: "/whole?q=1"},
			{send: "GET /service/foo/v1/api?q=1", to: "a", path: "/v1/api/instance/foo?q=1"},
			{send: "GET /case/XxX/b", to: "a", path: "/case/yyy/b"},
			{send: "GET /host", to: "a", asked: "inner.example"},
			{send: "GET /all/x", to: "b", path: "/some/x", asked: "inner.example"},
		}},
		{name: "rewrite-segments", semantics: "gateway", http: `
- match: [{uri: {prefix: /root}}]
  rewrite: {uri: /}
  $A
- match: [{uri: {prefix: /deep}}]
  rewrite: {uri: /down}
  $A
- match: [{uri: {prefix: /full}}]
  rewrite: {uriRegexRewrite: {match: "/.*", rewrite: /whole}}
  $A
- match: [{uri: {prefix: "/a.b(c"}}]
  rewrite: {uri: /}
  $A`, requests: []request{
			{send: "GET /root/x/y?q=1", to: "a", path: "/x/y?q=1"},
			{send: "GET /root", to: "a", path: "/"},
			{send: "GET /root/", to: "a", path: "/"},
			{send: "GET /root?q=1", to: "a", path: "/?q=1"},
			{send: "GET /deep/x", to: "a", path: "/down/x"},
			{send: "GET /deep", to: "a", path: "/down"},
			{send: "GET /full/x/y?q=1", to: "a", path: "/whole?q=1"},
			{send: "GET /a.b(c/x", to: "a", path: "/x"},
		}},
	}
}

func answerRules() []routing {
	return []routing{
		{name: "direct", http: `
- match: [{uri: {prefix: /string}}]
  directResponse: {status: 418, body: {string: short and stout}}
  headers: {response: {set: {x-kind: teapot}}}
- match: [{uri: {prefix: /bytes}}]
  directResponse: {status: 200, body: {bytes: aGVsbG8=}}
- directResponse: {status: 503}`, requests: []request{
			{send: "GET /string", status: 418, body: "short and stout", answer: "X-Kind: teapot"},
			{send: "GET /bytes", body: "hello"},
			{send: "GET /", status: 503},
		}},
		{name: "destination", http: `
- match: [{uri: {prefix: /short}}]
  route: [{destination: {host: one}}]
- match: [{uri: {prefix: /full}}]
  route: [{destination: {host: one.default.svc.cluster.local, port: {number: 8080}}}]
- match: [{uri: {prefix: /port}}]
  route: [{destination: {host: ports, port: {number: 9090}}}]
- match: [{uri: {prefix: /listener}}]
  route: [{destination: {host: ports}}]
- match: [{uri: {prefix: /no-host}}]
  route: [{destination: {host: nobody.example.com}}]
- match: [{uri: {prefix: /no-port}}]
  route: [{destination: {host: one, port: {number: 81}}}]
- match: [{uri: {prefix: /no-subset}}]
  route: [{destination: {host: shop, subset: v7}}]
- match: [{uri: {prefix: /empty}}]
  route: [{destination: {host: shop, subset: empty}}]
- match: [{uri: {prefix: /another-namespace}}]
  route: [{destination: {host: copy}}]
- $A`, requests: []request{
			{send: "GET /short", to: "one"},
			{send: "GET /full", to: "one"},
			{send: "GET /port", to: "p9090"},
			{send: "GET /listener", to: "p80"},
			{send: "GET /no-host", status: 503},
			{send: "GET /no-port", status: 503},
			{send: "GET /no-subset", status: 503},
			{send: "GET /empty", status: 503},
			{send: "GET /another-namespace", status: 503},
		}},
	}
}

func headerRules() []routing {
	return []routing{
		{name: "operations", http: `
- match: [{uri: {prefix: /request}}]
  headers: {request: {set: {x-set: new, x-made: "1"}, add: {x-add: more}, remove: [x-remove]}}
  $A
- match: [{uri: {prefix: /response}}]
  headers: {response: {set: {x-backend: other, x-made: "1"}, add: {x-backend-too: more}, remove: [x-powered-by]}}
  $A
- match: [{uri: {prefix: /host}}]
  headers: {request: {set: {Host: named.example}}}
  $A
- match: [{uri: {prefix: /authority}}]
  headers: {request: {set: {":authority": named.example}}}
  $A
- match: [{uri: {prefix: /value}}]
  headers: {request: {set: {x-method: "%REQ(:METHOD)%", x-share: "50%% of all", x-path: "%PATH(NQ)%", x-cel: "%CEL(request.path)%", x-none: "%UPSTREAM_METADATA(a:b)%"}}}
  $A
- match: [{uri: {prefix: /destination}}]
  headers: {request: {set: {x-rule: rule}}, response: {set: {x-rule: rule}}}
  route:
  - destination: {host: shop, subset: v2}
    headers: {request: {set: {x-dest: dest, Host: dest.example}, remove: [x-remove]}, response: {set: {x-dest: dest}}}
- match: [{uri: {prefix: /weighted}}]
  headers: {request: {set: {x-rule: rule}}}
  route:
  - destination: {host: shop, subset: v1}
    weight: 100
    headers: {request: {set: {x-dest: dest, Host: dest.example}}, response: {set: {x-dest: dest}, remove: [x-powered-by]}}
  - {destination: {host: one}, weight: 0}
  - {destination: {host: shop, subset: v1}, weight: 1, headers: {request: {set: {x-dest: dest, Host: dest.example}}, response: {set: {x-dest: dest}, remove: [x-powered-by]}}}
- $NO`, requests: []request{
			{send: "GET /request", header: "x-set: old; x-add: first; x-remove: 1", to: "a", arrives: "X-Set: new; X-Made: 1; X-Add: first,more; -X-Remove"},
			{send: "GET /response", to: "a", answer: "X-Backend: other; X-Made: 1; X-Backend-Too: more; -X-Powered-By"},
			{send: "GET /host", to: "a", asked: "named.example"},
			{send: "GET /authority", to: "a", asked: "named.example"},
			{send: "GET /value", to: "a", arrives: "X-Method: GET; X-Share: 50% of all; X-Path: /value; X-Cel: /value; -X-None"},
			{send: "GET /destination", header: "x-remove: 1", to: "b", asked: "dest.example", arrives: "X-Rule: rule; X-Dest: dest; -X-Remove", answer: "X-Rule: rule; X-Dest: dest"},
			{send: "GET /weighted", to: "a", asked: "dest.example", arrives: "X-Rule: rule; X-Dest: dest", answer: "X-Dest: dest; -X-Powered-By"},
		}},
	}
}
