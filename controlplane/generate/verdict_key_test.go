// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// keyRow is a key of sources, operations or conditions with values, and requests with one of them
// and with none, written as in a verdict without the status.
type keyRow struct {
	key, values       string
	matching, differs []string
}

// keyRows returns rows for every key.
func keyRows() []keyRow {
	callers := []string{"GET / | as shop/web", "GET / | as far/admin", "GET / | as spiffe://old.example/ns/shop/sa/web", "GET / | port tcp | as shop/web"}
	strangers := []string{"GET /", "GET / | as shop/web2", "GET / | as far/web", "GET / | port tcp", "GET / | as spiffe://old.example/ns/shop/sa/we"}
	near := []string{"GET / | from 127.0.0.9", "GET / | from 127.0.0.77", "GET / | port tcp | from 127.0.0.9"}
	far := []string{"GET /", "GET / | from 127.0.0.76", "GET / | X-Forwarded-For: 127.0.0.9", "GET / | port tcp"}
	forwarded := []string{"GET / | X-Forwarded-For: 192.0.2.7", "GET / | X-Forwarded-For: 198.51.100.1, 2001:db8::7", "GET / | X-Forwarded-For: 192.0.2.255"}
	unknown := []string{"GET /", "GET / | X-Forwarded-For: 192.0.2.7, 198.51.100.1", "GET / | X-Forwarded-For: 2001:db8::8", "GET / | X-Real-IP: 192.0.2.7"}
	members, guests := []string{"GET / | as shop/web", "GET / | as dev-1/any", "GET / | port tcp | as shop/web"}, []string{"GET /", "GET / | as shop2/web", "GET / | as dev/web", "GET / | port tcp"}
	accounts, others := []string{"GET / | as default/web", "GET / | as shop/api", "GET / | port tcp | as shop/api"}, []string{"GET /", "GET / | as shop/web", "GET / | as default/api", "GET / | port tcp"}
	bearer := func(names ...string) []string {
		var out []string
		for _, name := range names {
			out = append(out, "GET / | Authorization: Bearer <"+name+">")
		}
		return append(out, "GET /?access_token=<"+names[0]+">")
	}
	without := func(names ...string) []string { return append(bearer(names...), "GET /", "GET / | X-Token: <ann>") }
	const principals, ranges = `[cluster.local/ns/shop/sa/web, "*/sa/admin"]`, `[127.0.0.8/29, 127.0.0.77]`
	return []keyRow{
		{"principals", principals, callers, strangers},
		{"source.principal", principals, callers, strangers},
		{"requestPrincipals", `["` + issuerA + `/ann", "*/bob"]`, bearer("ann", "bob", "web"), without("slash", "nobody")},
		{"request.auth.principal", `["` + issuerA + `/ann", "*/bob"]`, bearer("ann", "bob", "web"), without("slash", "nobody")},
		{"namespaces", `[shop, "dev-*"]`, members, guests},
		{"source.namespace", `[shop, "dev-*"]`, members, guests},
		{"serviceAccounts", `[web, shop/api]`, accounts, others},
		{"source.serviceAccount", `[web, shop/api]`, accounts, others},
		{"trustDomains", `["old.*"]`, []string{"GET / | as spiffe://old.example/ns/shop/sa/web", "GET / | port tcp | as spiffe://old.example/ns/a/sa/b"}, []string{"GET /", "GET / | as shop/web", "GET / | as old.example/web", "GET / | port tcp | as shop/web"}},
		{"source.trustDomain", `["old.*"]`, []string{"GET / | as spiffe://old.example/ns/shop/sa/web"}, []string{"GET /", "GET / | as shop/web"}},
		{"ipBlocks", ranges, near, far},
		{"source.ip", ranges, near, far},
		{"remoteIpBlocks", `[192.0.2.0/24, "2001:db8::7"]`, forwarded, unknown},
		{"remote.ip", `[192.0.2.0/24, "2001:db8::7"]`, forwarded, unknown},
		{"hosts", `[a.example.com, "*.b.example.com"]`, []string{"GET / | host a.example.com", "GET / | host A.Example.COM", "GET / | host x.b.example.com", "GET / | host a.example.com | h2"}, []string{"GET /", "GET / | host b.example.com", "GET / | host a.example.com.evil", "GET / | host aXexample.com"}},
		{"ports", `["PORT_HTTP"]`, []string{"GET /", "POST /x | as shop/web"}, []string{"GET / | port tcp", "GET / | port tcp | as shop/web"}},
		{"destination.port", `["PORT_HTTP"]`, []string{"GET /", "POST /x | as shop/web"}, []string{"GET / | port tcp", "GET / | port tcp | as shop/web"}},
		{"methods", `[DELETE, "P*"]`, []string{"DELETE /", "POST /", "PUT / | h2"}, []string{"GET /", "OPTIONS /", "HEAD / | h2"}},
		{"paths", `[/a, "/b/*", "*/c", "/u/{*}/p", "/f/{**}/e"]`, []string{"GET /a", "GET /a?x=1", "GET /b/x/y", "GET /x/c", "GET /u/1/p", "GET /f/1/2/e", "GET /z/../a"}, []string{"GET /z", "GET /z?x=/a", "GET /b", "GET /u/1/2/p", "GET /f", "GET /a/../z"}},
		{"request.headers[X-User]", `[ann, "b*", "*-e"]`, []string{"GET / | X-User: ann", "GET / | x-user: bob | h2", "GET / | X-User: jan-e"}, []string{"GET /", "GET / | X-User: anna", "GET / | X-User: Ann", "GET / | X-Users: ann"}},
		{"request.auth.audiences", `[web]`, bearer("web", "lists"), without("ann")},
		{"request.auth.presenter", `["ap*"]`, bearer("azp"), without("ann")},
		{"request.auth.claims[group]", `["adm*"]`, bearer("claims"), without("ann")},
		{"request.auth.claims[realm][roles]", `[writer]`, bearer("claims"), without("ann")},
		{"request.auth.claims[scope]", `[read]`, bearer("claims"), without("ann")},
		{"destination.ip", `[127.77.58.0/24]`, []string{"GET /", "GET / | as shop/web", "GET / | port tcp"}, nil},
		{"destination.ip", `[10.0.0.0/8, "2001:db8::/32"]`, nil, []string{"GET /", "GET / | as shop/web", "GET / | port tcp"}},
		{"connection.sni", `[app.example.com, "*.b.example.com"]`, []string{"GET / | as shop/web | sni app.example.com", "GET / | as shop/web | sni x.b.example.com", "GET / | port tcp | as shop/web | sni app.example.com"}, []string{"GET /", "GET / | as shop/web", "GET / | as shop/web | sni other.example.com", "GET / | port tcp"}},
		{"experimental.envoy.filters.http.rbac[" + triedResult + "]", `[denied]`, []string{"GET /tried", "GET /tried?x=1"}, []string{"GET /", "GET /trie"}},
	}
}

// triedResult is the key of the metadata that a policy in dry run sets.
const triedResult = "istio_dry_run_deny_shadow_engine_result"

// verdicts returns four policies: that allow or deny what has one of the values, or none.
func (r keyRow) verdicts() []verdict {
	tried := strings.Replace(policy("tried", `{action: DENY, rules: [{to: [{operation: {paths: [/tried], ports: ["PORT_HTTP"]}}]}]}`), "namespace: default", `namespace: default, annotations: {istio.io/dry-run: "true"}`, 1)
	var out []verdict
	for _, excluded := range []bool{false, true} {
		for _, action := range []string{"ALLOW", "DENY"} {
			v := verdict{name: fmt.Sprintf("%s, excluded %t, %s", r.key, excluded, action), policies: documents(tokenRules("one", ruleA), policy("p", "{action: "+action+", rules: ["+r.rule(excluded)+"]}"))}
			if strings.HasPrefix(r.key, "experimental.") {
				if action == "DENY" {
					continue // these rules are evaluated before those in dry run set the metadata
				}
				v.policies = documents(v.policies, tried)
			}
			for i, requests := range [][]string{r.matching, r.differs} {
				matches := (i == 0) != excluded
				for _, q := range requests {
					status := "200"
					if matches != (action == "ALLOW") {
						status = map[bool]string{true: "0", false: "403"}[strings.Contains(q, "port tcp")]
					}
					v.requests += status + " " + q + "\n"
				}
			}
			out = append(out, v)
		}
	}
	return out
}

// rule returns a rule with the values of the key, or without them.
func (r keyRow) rule(excluded bool) string {
	if strings.Contains(r.key, ".") {
		return fmt.Sprintf(`{when: [{key: "%s", %s: %s}]}`, r.key, map[bool]string{false: "values", true: "notValues"}[excluded], r.values)
	}
	field := r.key
	if excluded {
		field = "not" + strings.ToUpper(field[:1]) + field[1:]
	}
	if (&securityv1beta1.Operation{}).ProtoReflect().Descriptor().Fields().ByJSONName(r.key) != nil {
		return fmt.Sprintf(`{to: [{operation: {%s: %s}}]}`, field, r.values)
	}
	return fmt.Sprintf(`{from: [{source: {%s: %s}}]}`, field, r.values)
}

// allKeys returns the keys of sources, operations and conditions: the fields of the messages, and
// what validation names when a key is unknown.
func allKeys(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, m := range []proto.Message{&securityv1beta1.Source{}, &securityv1beta1.Operation{}} {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if f := fields.Get(i); f.Cardinality() == protoreflect.Repeated && !strings.HasPrefix(f.JSONName(), "not") {
				out = append(out, f.JSONName())
			}
		}
	}
	_, problems := codec.Decode("", []byte("apiVersion: security.istio.io/v1\n"+policy("p", `{rules: [{when: [{key: "?", values: [a]}]}]}`)))
	if len(problems) != 1 {
		t.Fatalf("problems %v", problems)
	}
	_, list, ok := strings.Cut(problems[0].Reason, ": it knows ")
	if !ok {
		t.Fatalf("no keys of conditions in %q", problems[0].Reason)
	}
	return append(out, strings.Split(list, ", ")...)
}

// TestKeyVerdicts sends requests with and without each attribute through the real Envoy.
func TestKeyVerdicts(t *testing.T) {
	t.Parallel()
	passing, failing, total := map[string]int{}, map[string]int{}, 0
	var verdicts []verdict
	for _, r := range keyRows() {
		// The key in brackets is a name that policies choose; filters are of many kinds.
		key := regexp.MustCompile(`\[.*|(\.filters)\..*`).ReplaceAllString(r.key, "$1")
		passing[key] += len(r.matching)
		failing[key] += len(r.differs)
		for _, v := range r.verdicts() {
			total += strings.Count(v.requests, "\n")
			verdicts = append(verdicts, v)
		}
	}
	for _, key := range allKeys(t) {
		if passing[key] == 0 || failing[key] == 0 {
			t.Errorf("%s: %d requests match it, and %d do not", key, passing[key], failing[key])
		}
		delete(passing, key)
	}
	if len(passing) > 0 {
		t.Errorf("these keys are unknown: %v", passing)
	}
	if total < 300 {
		t.Errorf("%d requests, want at least 300", total)
	}
	t.Logf("%d requests to %d workloads", total, len(verdicts))
	verdicts = newTokens(t).in(verdicts)
	c := newCourt(t, "127.77.58.6", func() *snapshot.Input {
		mesh := proto.CloneOf(meshconfig.Default())
		mesh.TrustDomainAliases = []string{"old.example"}
		return &snapshot.Input{Mesh: mesh}
	}, verdicts)
	for i, v := range verdicts {
		t.Run(v.name, func(t *testing.T) { c.check(t, i, v) })
	}
}
