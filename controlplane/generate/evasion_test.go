// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// evasion is an attempt to get round a policy. A file of testdata/evasions has one:
//
//	# What the attempt is | what happens
//	rule: {to: [{operation: {paths: [/admin]}}]}
//	levels: all
//	200 403 GET /admin
//	gateway NONE: 403 200 GET /x/../admin | host other
//
// The rule is that of a policy that allows, and of one that denies. A request has the status with
// each of them, and is written as in a verdict. It is sent to a sidecar and a gateway, with the
// default level of path normalization or with all, unless words before it name some of
// them. Envoys are named by since-1.39 or before-1.39. See [variants] for other policies with the
// same rule.
type evasion struct {
	file, title, outcome, rule string
	levels                     []string
	attempts                   []attempt
}

type attempt struct {
	when          []string // roles, levels and versions; empty for all
	allow, deny   string
	request, line string
}

// normalizations are the levels of path normalization. The first is the default.
var normalizations = []string{"BASE", "NONE", "MERGE_SLASHES", "DECODE_AND_MERGE_SLASHES"}

var roles = []string{"sidecar", "gateway"}

func evasions(t *testing.T) []evasion {
	t.Helper()
	files, err := filepath.Glob("testdata/evasions/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no evasions: %v", err)
	}
	var out []evasion
	for _, file := range files {
		e := evasion{file: filepath.Base(file), levels: normalizations[:1]}
		for line := range strings.Lines(string(read(t, file))) {
			line = strings.TrimSpace(line)
			title, isTitle := strings.CutPrefix(line, "# ")
			rule, isRule := strings.CutPrefix(line, "rule: ")
			switch {
			case line == "":
			case isTitle && e.title == "":
				e.title, e.outcome, _ = strings.Cut(title, " | ")
			case isTitle:
			case line == "levels: all":
				e.levels = normalizations
			case isRule:
				e.rule = rule
			default:
				e.attempts = append(e.attempts, parseAttempt(t, file, line))
			}
		}
		if e.title == "" || e.outcome == "" || e.rule == "" || len(e.attempts) == 0 {
			t.Fatalf("%s: a title, an outcome, a rule or the requests are missing", file)
		}
		out = append(out, e)
	}
	return out
}

func parseAttempt(t *testing.T, file, line string) attempt {
	t.Helper()
	a := attempt{line: line}
	rest := line
	if line[0] < '0' || line[0] > '9' {
		when, after, _ := strings.Cut(line, ": ")
		a.when, rest = strings.Fields(when), after
	}
	for _, w := range a.when {
		if _, _, ofVersion := versions(w); !ofVersion && !slices.Contains(roles, w) && !slices.Contains(normalizations, w) {
			t.Fatalf("%s: %s: %q is no role, level or version", file, line, w)
		}
	}
	words := strings.SplitN(rest, " ", 3)
	if len(words) != 3 {
		t.Fatalf("%s: %s: two statuses and a request are expected", file, line)
	}
	a.allow, a.deny, a.request = words[0], words[1], words[2]
	return a
}

// versions parses since-1.39 or before-1.39.
func versions(word string) (minor int, since, ok bool) {
	text, since := strings.CutPrefix(word, "since-1.")
	if !since {
		if text, ok = strings.CutPrefix(word, "before-1."); !ok {
			return 0, false, false
		}
	}
	minor, err := strconv.Atoi(text)
	return minor, since, err == nil
}

// tried reports whether the attempt is made against a role with a level, in a version of Envoy.
func (a attempt) tried(role, level string, envoy int) bool {
	for _, w := range a.when {
		if minor, since, ok := versions(w); ok && since != (envoy >= minor) {
			return false
		}
	}
	named := func(all []string, one string) bool {
		return slices.Contains(a.when, one) || !slices.ContainsFunc(a.when, func(w string) bool { return slices.Contains(all, w) })
	}
	return named(roles, role) && named(normalizations, level)
}

// TestEnvoyEvasions makes the attempts against the real Envoy.
func TestEnvoyEvasions(t *testing.T) {
	t.Parallel()
	const address = "127.77.59.5"
	var proxies []guardedProxy
	var asks []question
	envoy, tokens, authorizer := envoyMinor(t), newTokens(t), newRefuser(t)
	for _, e := range evasions(t) {
		for _, v := range e.variants(t, tokens, authorizer) {
			levels := e.levels
			if v.asks || v.header != "" {
				levels = levels[:1] // the rules read the same path as those of the other variants
			}
			for _, role := range roles {
				for _, level := range levels {
					asks = append(asks, e.questions(t, len(proxies), envoy, role, level, v, tokens)...)
					p := evasionProxy(address, role, level, verdict{name: fmt.Sprintf("%s, %s, %s, %s", e.file, v.name, role, level), policies: v.objects})
					p.settings.Mesh.ExtensionProviders = authorizer.providers
					proxies = append(proxies, p)
				}
			}
		}
	}
	c := newCourtOf(t, address, proxies)
	// Envoy keeps some of the connections with errors open for a second.
	queue := make(chan question)
	var workers sync.WaitGroup
	for range 128 {
		workers.Go(func() {
			for q := range queue {
				if got := c.ask(t, q.proxy, q.want+" "+q.request); got != q.want {
					t.Errorf("%s: got %s: %s", proxies[q.proxy].name, got, q.line)
				}
			}
		})
	}
	for _, q := range asks {
		queue <- q
	}
	close(queue)
	workers.Wait()
	t.Logf("%d requests to %d proxies", len(asks), len(proxies))
}

// question is a request to a proxy and the expected status.
type question struct {
	proxy               int
	want, request, line string
}

func (e evasion) questions(t *testing.T, proxy, envoy int, role, level string, v variant, tokens *tokens) []question {
	t.Helper()
	var out []question
	for _, a := range e.attempts {
		if !a.tried(role, level, envoy) {
			continue
		}
		want := a.allow
		if v.refuses {
			want = a.deny
		}
		if v.asks && strings.HasPrefix(a.request, "CONNECT ") && want == "403" {
			want = "404" // Envoy asks no authorizer about a request without a route
		}
		out = append(out, question{proxy, want, tokens.replace(unescape(t, a.request) + v.header), a.line})
	}
	return out
}

//go:generate go test -run TestEvasionTable . -update

// TestEvasionTable compares the table in the documents with the files.
func TestEvasionTable(t *testing.T) {
	t.Parallel()
	want := "| Attempt | What happens |\n|---|---|\n"
	for _, e := range evasions(t) {
		row := "| " + e.title + " | " + e.outcome + " |"
		if len(row) > 120 {
			t.Errorf("%s: the row has %d bytes: shorten it", e.file, len(row))
		}
		want += row + "\n"
	}
	const file = "../../docs/operations/evasions.md"
	page := string(read(t, file))
	before, rest, _ := strings.Cut(page, " made by make generate -->\n")
	table, after, ok := strings.Cut(rest, "<!-- end -->")
	switch {
	case !ok:
		t.Errorf("%s has no place for the table", file)
	case table != want && *update:
		write(t, file, []byte(before+" made by make generate -->\n"+want+"<!-- end -->"+after))
	case table != want:
		t.Errorf("%s does not have this table; run make generate:\n%s", file, want)
	}
}

// unescape replaces the escape sequences of Go's strings.
func unescape(t *testing.T, text string) string {
	t.Helper()
	out, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

// evasionProxy returns a sidecar or a gateway.
func evasionProxy(address, role, level string, v verdict) guardedProxy {
	mesh := proto.CloneOf(meshconfig.Default())
	mesh.PathNormalization = &meshv1alpha1.MeshConfig_ProxyPathNormalization{
		Normalization: meshv1alpha1.MeshConfig_ProxyPathNormalization_NormalizationType(meshv1alpha1.MeshConfig_ProxyPathNormalization_NormalizationType_value[level]),
	}
	p := guardedProxy{verdict: v, settings: &snapshot.Input{Mesh: mesh}, objects: verdictObjects, proxy: proxyAt(address)}
	if role == "gateway" {
		p.objects = strings.ReplaceAll(edgeObjects, "ADDRESS", address)
		p.proxy = &model.Proxy{ID: "edge.default", Role: "router", IPs: []string{address}, Namespace: "default", ServiceAccount: "edge", Labels: map[string]string{"app": "edge"}}
	}
	return p
}

// edgeObjects are a gateway that accepts requests in plaintext and with mutual TLS, and connections.
const edgeObjects = `
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: PORT_HTTP, protocol: HTTP, name: http}, bind: ADDRESS, hosts: ["*"]}
  - {port: {number: PORT_TLS, protocol: HTTPS, name: tls}, bind: ADDRESS, hosts: ["*"], tls: {mode: ISTIO_MUTUAL}}
  - {port: {number: PORT_TCP, protocol: TCP, name: tcp}, bind: ADDRESS, hosts: ["*"]}
---
kind: VirtualService
metadata: {name: edge, namespace: default}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{route: [{destination: {host: app.default.svc.cluster.local}}]}]
  tcp: [{route: [{destination: {host: app.default.svc.cluster.local}}]}]
---
kind: ServiceEntry
metadata: {name: app, namespace: default}
spec:
  hosts: [app.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT_APP}}]
`
