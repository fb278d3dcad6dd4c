// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
)

// TestMistakes plants common mistakes, one at a time, and checks that outrigger analyze names each: its
// code and the object that must be changed.
func TestMistakes(t *testing.T) {
	t.Parallel()
	sections := sectionsOf(t, "mistakes.txt")
	keys := plantedKeys(t)
	settings := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(settings, []byte("accessLogFile: /dev/stdout\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	find := func(t *testing.T, objects string) []analyze.Finding {
		out, errs, code := runWith(t, objects, "analyze", "-", "-o", "json", "--meshConfigFile", settings)
		var r analyze.Result
		if err := json.Unmarshal([]byte(out), &r); err != nil || code > exitFailed {
			t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
		}
		return r.Findings
	}
	if found := find(t, sections[0]); len(found) > 0 {
		t.Fatalf("the base has mistakes: %v", found)
	}
	if len(sections) < 51 {
		t.Errorf("%d mistakes, want 50 or more", len(sections)-1)
	}
	for _, section := range sections[1:] {
		name, rest, _ := strings.Cut(section, " --\n")
		want, objects, _ := strings.Cut(rest, "\n")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, f := range find(t, sections[0]+"\n---\n"+keys.Replace(objects)) {
				got = append(got, f.Code+" "+f.Object.String())
			}
			if !slices.Contains(got, want) {
				t.Errorf("found %q, want %s", got, want)
			}
		})
	}
}

// plantedKeys replaces the names of certificates and keys in planted Secrets.
func plantedKeys(t *testing.T) *strings.Replacer {
	t.Helper()
	cert, key := keyPair(t, 1, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	_, other := keyPair(t, 2, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	code := base64.StdEncoding.EncodeToString
	return strings.NewReplacer("CRT", code([]byte(cert)), "KEY", code([]byte(key)), "OTHER", code([]byte(other)))
}

// sectionsOf returns the sections of a file of testdata, beginning with the text of the one named base.
func sectionsOf(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	_, base, _ := strings.Cut(string(text), "\n-- base --\n")
	return strings.Split(base, "\n-- ")
}

// TestMistakenRequests plants mistakes because of which a request fails, or goes elsewhere, and checks that
// outrigger explain request names the cause with its object and line.
func TestMistakenRequests(t *testing.T) {
	t.Parallel()
	keys, shared := plantedKeys(t), map[string]string{}
	for _, section := range sectionsOf(t, "mistakes.txt")[1:] {
		name, rest, _ := strings.Cut(section, " --\n")
		_, shared[name], _ = strings.Cut(rest, "\n")
	}
	sections := sectionsOf(t, "mistaken-requests.txt")
	if len(sections) < 51 {
		t.Errorf("%d mistakes, want 50 or more", len(sections)-1)
	}
	c := mistakenMesh(t, sections[0], "")
	for _, to := range []string{"web.shop", "db.shop"} {
		out, errs, code := run(t, "explain", "request", "--control", c.http, "--certificates=false", "--from", "orders-1.shop", "--to", to)
		if !strings.HasPrefix(out, "Allowed\n") || strings.Contains(out, "effect") || strings.Contains(out, "analyze") || code != 0 {
			t.Errorf("without a mistake: exit code %d\n%s%s", code, out, errs)
		}
	}
	for _, section := range sections[1:] {
		name, rest, _ := strings.Cut(section, " --\n")
		lines := strings.SplitN(rest+"\n", "\n", 3)
		planted := lines[2]
		if strings.TrimSpace(planted) == "" {
			planted = keys.Replace(shared[name])
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := mistakenMesh(t, sections[0], planted)
			out, errs, code := run(t, append([]string{"explain", "request", "--control", c.http, "--certificates=false"}, strings.Fields(lines[0])...)...)
			flat := strings.Join(strings.Fields(out), " ")
			for want := range strings.SplitSeq(lines[1], "~") {
				if want == "Allowed" && !strings.HasPrefix(out, "Allowed\n") || !strings.Contains(flat, strings.Join(strings.Fields(want), " ")) {
					t.Errorf("%s lacks %q, exit code %d:\n%s%s", lines[0], want, code, out, errs)
				}
			}
			if allowed := strings.HasPrefix(out, "Allowed\n") || strings.HasPrefix(out, "Allowed, unless") || strings.Contains(out, "responds with status 3"); allowed != (code == 0) {
				t.Errorf("exit code %d:\n%s", code, out)
			}
		})
	}
}

// plantedSecrets are the Secrets of planted objects.
type plantedSecrets struct{ data map[string]map[string][]byte }

func (p *plantedSecrets) Get(namespace, name string) (*credentials.Credential, error) {
	data, ok := p.data[namespace+"/"+name]
	if !ok {
		return nil, fmt.Errorf("%w: there is no Secret %s/%s", credentials.ErrNotFound, namespace, name)
	}
	return credentials.Parse(namespace, name, data)
}

func (*plantedSecrets) OnChange(func(namespace, name string)) {}

func (*plantedSecrets) Synced() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// secretsIn returns the Secrets among objects; nil if there are none.
func secretsIn(t *testing.T, objects string) credentials.Source {
	t.Helper()
	out := &plantedSecrets{map[string]map[string][]byte{}}
	for text := range strings.SplitSeq(objects, "\n---\n") {
		var secret struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
			Data     map[string][]byte
		}
		if err := yaml.Unmarshal([]byte(text), &secret); err != nil || secret.Kind != "Secret" {
			continue // other kinds are read elsewhere
		}
		out.data[secret.Metadata.Namespace+"/"+secret.Metadata.Name] = secret.Data
	}
	if len(out.data) == 0 {
		return nil
	}
	return out
}

// mistakenMesh starts a control plane with planted objects, and connects the proxies of the base to it.
func mistakenMesh(t *testing.T, base, planted string) *control {
	t.Helper()
	files := []analyze.File{{Source: "base.yaml", Data: []byte(base)}, {Source: "a.yaml", Data: []byte(planted)}}
	read := analyze.Read(nil, files, "", false)
	c := startControlWith(t, "one", secretsIn(t, planted))
	c.objects = shelf(read.Objects)
	c.Debug(debug.Config{Replica: "one", Objects: c.objects, Problems: func() (out []debug.KnownProblem) {
		for _, p := range read.Problems {
			out = append(out, debug.KnownProblem{Problem: p})
		}
		return out
	}})
	c.push()
	for id, app := range map[string]string{
		"sidecar~127.77.51.22~web-1.shop~shop.svc.cluster.local":    "web",
		"sidecar~127.77.51.24~db-1.shop~shop.svc.cluster.local":     "db",
		"sidecar~127.77.51.25~orders-1.shop~shop.svc.cluster.local": "orders",
		"sidecar~127.77.51.26~batch-1.edge~edge.svc.cluster.local":  "batch",
		"router~127.77.51.23~ingress-1.edge~edge.svc.cluster.local": "ingress",
	} {
		c.join(t, id, map[string]any{"LABELS": map[string]any{"app": app, "istio": app, "version": "v1"}, "SERVICE_ACCOUNT": app}, "")
	}
	return c
}

// TestRefusedConnections checks that explain request says that the application of a workload refuses
// connections, and that endpoints are ejected.
func TestRefusedConnections(t *testing.T) {
	t.Parallel()
	c := mistakenMesh(t, sectionsOf(t, "mistaken-requests.txt")[0], "")
	for address, text := range map[string]string{
		"127.77.51.24": "inbound|54320||::127.0.0.1:54320::cx_connect_fail::9\ninbound|5432||::[::1]:5432::cx_connect_fail::3\ninbound|5432||::[::1]:5432::cx_total::4\n",
		"127.77.51.25": "outbound|5432||db.shop.svc.cluster.local::default_priority::max_connections::5\noutbound|5432||db.shop.svc.cluster.local::127.77.51.24:5432::health_flags::/failed_outlier_check\n",
	} {
		listener, err := net.Listen("tcp", address+":"+adminPort)
		if err != nil {
			t.Fatal(err)
		}
		admin := &httptest.Server{Listener: listener, Config: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/clusters" {
				_, _ = io.WriteString(w, text) // the test sees what is missing
				return
			}
			_, _ = io.WriteString(w, `{"configs":[{"name":"default","secret":{"name":"default"}}]}`)
		})}}
		admin.Start()
		t.Cleanup(admin.Close)
	}
	out, errs, _ := run(t, "explain", "request", "--control", c.http, "--from", "orders-1.shop", "--to", "db.shop")
	for _, want := range []string{
		"db-1.shop: 3 of 4 connections to its application at [::1]:5432 failed",
		"orders-1.shop: outlier detection has ejected 127.77.51.24:5432 of outbound|5432||db.shop.svc.cluster.local",
	} {
		if !strings.Contains(out, want) || strings.Contains(out, "9 of") {
			t.Errorf("lacks %q:\n%s%s", want, out, errs)
		}
	}
}
