// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// exampleTable is the file beside an example: the workload, the mesh config, and the requests.
type exampleTable struct {
	Gateway  bool             `json:"gateway"`
	Mesh     json.RawMessage  `json:"mesh"`
	Problem  string           `json:"problem"`
	Requests []exampleRequest `json:"requests"`
}

// exampleRequest is a request, and the status of its answer.
type exampleRequest struct {
	Status  int             `json:"status"`
	Method  string          `json:"method"`
	Path    string          `json:"path"`
	Host    string          `json:"host"`
	Port    string          `json:"port"`
	As      string          `json:"as"`   // the identity of the client
	From    string          `json:"from"` // its address
	Headers []string        `json:"headers"`
	Token   json.RawMessage `json:"token"`   // claims, or a fault
	Arrives string          `json:"arrives"` // a header that the application receives, or not
	DryRun  bool            `json:"dryRun"`  // a policy in dry run would deny the request
}

const exampleIssuer = "https://login.clinic.example"

// line returns the request as in a verdict. The token is sent in the header Authorization, or where
// the request has the word TOKEN.
func (r exampleRequest) line(t *testing.T, tokens *tokens) string {
	t.Helper()
	word := func(value, other string) string {
		if value == "" {
			return other
		}
		return value
	}
	out := fmt.Sprintf("%d %s %s", r.Status, word(r.Method, "GET"), word(r.Path, "/"))
	for name, value := range map[string]string{"as": r.As, "from": r.From, "port": r.Port, "host": r.Host} {
		if value != "" {
			out += " | " + name + " " + value
		}
	}
	for _, h := range r.Headers {
		out += " | " + h
	}
	if r.Arrives != "" {
		out += " | Want: " + r.Arrives
	}
	if r.Token == nil {
		return out
	}
	if !strings.Contains(out, "TOKEN") {
		out += " | Authorization: Bearer TOKEN"
	}
	return strings.ReplaceAll(out, "TOKEN", r.token(t, tokens))
}

func (r exampleRequest) token(t *testing.T, tokens *tokens) string {
	t.Helper()
	const day = 24 * 60 * 60
	claims, key := map[string]any{"iss": exampleIssuer, "sub": "ann", "exp": time.Now().Unix() + day}, tokens.a
	var fault string
	if json.Unmarshal(r.Token, &fault) != nil {
		var own map[string]any
		if err := json.Unmarshal(r.Token, &own); err != nil {
			t.Fatal(err)
		}
		maps.Copy(claims, own)
	}
	switch fault {
	case "":
	case "expired":
		claims["exp"] = time.Now().Unix() - day
	case "of another issuer":
		claims["iss"] = "https://login.other.example"
	case "signed by another key":
		key = jose.SigningKey{Algorithm: tokens.b.Algorithm, Key: tokens.b.Key}
	default:
		t.Fatalf("the token %q is not known", fault)
	}
	return sign(t, key, claims)
}

// readExample returns a proxy with the objects of an example, and its requests.
func readExample(t *testing.T, file, address string, tokens *tokens, authz *authorizers) (guardedProxy, []exampleRequest) {
	t.Helper()
	var table exampleTable
	if err := yaml.UnmarshalStrict(read(t, strings.TrimSuffix(file, ".yaml")+".requests.yaml"), &table); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	policies := strings.NewReplacer("8080", "PORT_HTTP", "9000", "PORT_TCP", "9191", authz.web).Replace(string(read(t, file)))
	policies = regexp.MustCompile(`jwks: '.*'`).ReplaceAllString(policies, "jwks: '"+tokens.values["KEYS_A"]+"'")
	if table.Problem != "" {
		policies = "# problem: " + table.Problem + "\n" + policies
	}
	mesh, err := meshconfig.Parse([]byte(strings.ReplaceAll(string(table.Mesh), "9191", authz.web)))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	p := guardedProxy{
		verdict: verdict{name: filepath.Base(file), policies: policies}, settings: &snapshot.Input{Mesh: mesh},
		objects: strings.ReplaceAll(verdictObjects, "default}", "clinic}"), proxy: proxyAt(address),
	}
	p.proxy.Namespace, p.proxy.Labels = "clinic", map[string]string{"app": "records"}
	if table.Gateway {
		p.objects = strings.NewReplacer("ADDRESS", address, "namespace: default", "namespace: edge", "app.default.", "records.clinic.").Replace(edgeObjects)
		if strings.Contains(policies, "kind: VirtualService") {
			objects := strings.Split(p.objects, "---\n")
			p.objects = objects[0] + "---\n" + objects[2]
		}
		p.proxy = &model.Proxy{ID: "edge.edge", Role: "router", IPs: []string{address}, Namespace: "edge", ServiceAccount: "edge", Labels: map[string]string{"app": "edge"}}
	}
	return p, table.Requests
}

// TestExamples sends the requests of the examples through the real Envoy, which compares each with
// the decision that is computed.
func TestExamples(t *testing.T) {
	t.Parallel()
	const address = "127.77.58.4"
	files, err := filepath.Glob("../../examples/authorization/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tokens, authz := newTokens(t), newAuthorizers(t)
	var proxies []guardedProxy
	var requests [][]exampleRequest
	for _, file := range files {
		if strings.HasSuffix(file, ".requests.yaml") {
			continue
		}
		p, list := readExample(t, file, address, tokens, authz)
		if len(list) == 0 {
			t.Errorf("%s: no requests", file)
		}
		proxies, requests = append(proxies, p), append(requests, list)
	}
	if len(proxies) < 20 {
		t.Fatalf("%d examples", len(proxies))
	}
	c := newCourtOf(t, address, proxies)
	for i, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			for _, r := range requests[i] {
				line := r.line(t, tokens)
				if got := c.ask(t, i, line); got != strconv.Itoa(r.Status) {
					t.Errorf("%+v: got %s", r, got)
				}
				q := parseSent(line)
				v := c.decided(t, i, c.request(t, i, q, q.client()))
				if tried := len(v.Trials) > 0; tried != r.DryRun {
					t.Errorf("%+v: denied in dry run: %t", r, tried)
				}
				if asks := strings.HasPrefix(r.Path, "/patients/") && p.name == "custom.yaml"; asks != (len(v.Asked) > 0) {
					t.Errorf("%+v: asks %+v", r, v.Asked)
				}
				if v.By == decision.ByRule && !strings.Contains(v.Rule, "ns[") {
					t.Errorf("%+v: the rule is %q", r, v.Rule)
				}
			}
		})
	}
}
