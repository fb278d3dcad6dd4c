// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
)

// TestInvalid reads invalid mesh files and compares all problems with the golden text for each
// file.
func TestInvalid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/invalid/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	dir, err := filepath.Abs("testdata/invalid")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, problems := load(file, false)
			got := (&Invalid{File: name + ".yaml", Problems: problems}).Error() + "\n"
			got = strings.ReplaceAll(got, dir, "DIR")
			golden := strings.TrimSuffix(file, ".yaml") + ".want"
			goldentest.Check(t, golden, got)
		})
	}
}

func TestAliases(t *testing.T) {
	t.Parallel()
	text := "env: {a: &a " + strings.Repeat("x", 50_000) + "}\nworkloads: [{env: {" + strings.Repeat("k: *a, ", 1000) + "}}]"
	if _, problems := decode([]byte(text)); len(problems) != 1 || problems[0].Line != 2 || !strings.Contains(problems[0].Text, "expand to more than") {
		t.Errorf("problems %.300v, want that the aliases of line 2 expand to too much", problems)
	}
}

func TestMissingFile(t *testing.T) {
	t.Parallel()
	_, err := New(Config{File: filepath.Join(t.TempDir(), "none.yaml"), Problems: []Problem{{Text: "no Envoy"}}})
	for _, want := range []string{"none.yaml", "no Envoy", "outrigger-agent", "name a mesh file with -f"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

// write creates a mesh file with the given text.
func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func mustLoad(t *testing.T, text string) *meshFile {
	t.Helper()
	m, problems := load(write(t, text), false)
	if len(problems) > 0 {
		t.Fatalf("problems: %v", problems)
	}
	return m
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	m := mustLoad(t, `
workloads:
- {name: a, command: [sh], port: 9000, address: 127.1.0.3}
- {name: b, command: [sh], port: 9001, service: s, namespace: n, servicePort: 80, protocol: grpc, labels: {version: 1}}
- {name: c, command: [sh], port: 9002, serviceAccount: robot}
`)
	type row struct{ name, namespace, service, account, address, protocol string }
	var got []row
	for _, w := range m.workloads {
		got = append(got, row{w.name, w.namespace, w.service, w.serviceAccount, hostPort(w.address, w.servicePort), w.protocol})
	}
	want := []row{
		{"a", "default", "a", "a", "127.1.0.3:9000", "HTTP"},
		{"b", "n", "s", "s", "127.1.0.2:80", "GRPC"},
		{"c", "default", "c", "robot", "127.1.0.4:9002", "HTTP"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{})); diff != "" {
		t.Error(diff)
	}
	labels := map[string]string{"version": "1", "app": "s", workloadLabel: "b"}
	if diff := cmp.Diff(labels, m.workloads[1].labels); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("app=\"s\"\noutrigger.mesh/workload=\"b\"\nversion=\"1\"\n", string(labelsFile(labels))); diff != "" {
		t.Error(diff)
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"PORT": "80", "EMPTY": "", "DOLLAR": "$(PORT)"}
	for in, want := range map[string]string{
		"":                    "",
		"--port=$(PORT)":      "--port=80",
		"$(PORT)$(PORT)":      "8080",
		"[$(EMPTY)]":          "[]",
		"$(UNKNOWN) $(PORT)":  "$(UNKNOWN) 80",
		"$$(PORT) $$$(PORT)":  "$(PORT) $80",
		"$PORT $ ${PORT} $":   "$PORT $ ${PORT} $",
		"$(PORT":              "$(PORT",
		"$(DOLLAR)":           "$(PORT)", // values are not expanded again
		"a$$":                 "a$",
		"$(PORT) $(PO $(PORT": "80 $(PO $(PORT",
	} {
		if got := expand(in, vars); got != want {
			t.Errorf("expand(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	m := mustLoad(t, `
workloads:
- name: a
  command: [sh, "$(URL)", "$(MESH_DIR)", "$$(PORT)"]
  port: 9000
  servicePort: 80
  env: {URL: "http://$(ADDRESS):$(SERVICE_PORT)/$(NAME)", PORT: "1$(PORT)", LATER: "$(PORT)"}
`)
	got := m.argv(m.workloads[0])
	want := []string{"sh", "http://127.1.0.2:80/a", m.dir(), "$(PORT)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	u := &Mesh{mesh: m, cfg: Config{Environ: []string{"HOME=/h", "HTTP_PROXY=other", "PATH=" + os.Getenv("PATH")}}}
	c, err := u.appCommand(&state{dir: "/s"}, m.workloads[0])
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]string{}
	for _, v := range c.env {
		name, value, _ := strings.Cut(v, "=")
		last[name] = value
	}
	for name, want := range map[string]string{
		"HOME": "/h", "HTTP_PROXY": "http://127.1.0.2:15080", "http_proxy": "http://127.1.0.2:15080", "https_proxy": "http://127.1.0.2:15080",
		"PORT": "19000", "LATER": "19000", "SERVICE": "a",
	} {
		if last[name] != want {
			t.Errorf("%s is %q, want %q", name, last[name], want)
		}
	}
	u.cfg.Environ = append(u.cfg.Environ, "COMPLIANCE_POLICY=pqc")
	if !slices.Contains(u.cleanEnv(), "COMPLIANCE_POLICY=pqc") {
		t.Error("the programs do not get the policy for TLS")
	}
	for _, v := range u.cleanEnv() {
		if strings.HasPrefix(v, "HOME=") || strings.HasPrefix(v, "HTTP_PROXY=") {
			t.Errorf("the clean environment has %s", v)
		}
	}
}

// Agents on this machine have no cluster id: only those in Kubernetes belong to a cluster. They have
// proxyMetadata in their environment, except for what outrigger sets.
func TestAgentEnvironment(t *testing.T) {
	t.Parallel()
	m := mustLoad(t, "mesh: {defaultConfig: {proxyMetadata: {WHO: me, POD_NAME: other}}}\nworkloads:\n- {name: a, command: [sh], port: 9000}\n")
	u := &Mesh{mesh: m}
	c, err := u.agentCommand(&state{dir: "/s"}, m.workloads[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range c.files {
		_ = f.Close() // the agent does not run
	}
	last := map[string]string{}
	for _, v := range c.env {
		name, value, _ := strings.Cut(v, "=")
		if last[name] = value; strings.HasSuffix(name, "CLUSTER_ID") {
			t.Errorf("the agent has %s=%s", name, value)
		}
	}
	if last["WHO"] != "me" || last["POD_NAME"] != "a" {
		t.Errorf("the agent has WHO=%s and POD_NAME=%s, want me and a", last["WHO"], last["POD_NAME"])
	}
}

// FuzzDecode checks that no text makes the reader fail, and that a file without problems is
// complete enough to generate the configuration.
func FuzzDecode(f *testing.F) {
	f.Add("workloads:\n- {name: a, command: [sh], port: 9000}\n")
	f.Add("a: &a [*a]\n? [x]\n: y\n")
	f.Add("workloads: [{labels: {a: &x 1, b: *x}}]\n---\n")
	f.Add("mesh: {proxyHttpPort: 99999999999, defaultConfig: {a: 1}}\nnetwork: 127.0.0.0/8\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, problems := decode([]byte(text))
		if m == nil {
			if len(problems) == 0 {
				t.Fatal("no mesh and no problem")
			}
			return
		}
		m.file = "/mesh.yaml"
		if problems = append(problems, m.complete()...); len(problems) > 0 {
			return
		}
		if _, err := m.generated(); err != nil {
			t.Fatal(err)
		}
		if _, err := m.meshConfig("/x"); err != nil {
			t.Fatal(err)
		}
	})
}

// TestIsolated reads mesh files of workloads with network namespaces, and without.
func TestIsolated(t *testing.T) {
	t.Parallel()
	const command = "command: [sh], port: 9000"
	for name, c := range map[string]struct{ text, isolated, shared string }{
		"TCP":          {"workloads:\n- {name: a, " + command + ", protocol: TCP}\n", "", ""},
		"address":      {"workloads:\n- {name: a, " + command + ", address: 127.9.0.2}\n", "address 127.9.0.2 is outside of network 127.1.0.0/24", ""},
		"port":         {"workloads:\n- {name: a, " + command + ", servicePort: 15006}\n", "servicePort 15006 is Envoy's port for inbound connections", ""},
		"ports of all": {"mesh: {proxyListenPort: 15101}\nworkloads:\n- {name: a, " + command + "}\n", "proxyListenPort is set by outrigger with --isolate=netns", ""},
		"protocol":     {"workloads:\n- {name: a, " + command + ", protocol: UDP}\n", "use one of HTTP, HTTP2, GRPC, TCP", "use one of HTTP, HTTP2, GRPC, TCP"},
	} {
		for isolated, want := range map[bool]string{true: c.isolated, false: c.shared} {
			_, problems := load(write(t, c.text), isolated)
			if (want == "") != (len(problems) == 0) || len(problems) > 0 && !strings.Contains(problems[0].Text, want) {
				t.Errorf("%s, isolated %v: %v, want %q", name, isolated, problems, want)
			}
		}
	}
}

// TestIsolatedWorkload compares what a workload is with its own network and without.
func TestIsolatedWorkload(t *testing.T) {
	t.Parallel()
	m, problems := load(write(t, "workloads:\n- {name: a, command: [sh], port: 9000, servicePort: 80, protocol: TCP}\n"), true)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	m.inside = func(a netip.Addr) netip.Addr { b := a.As4(); b[0] = 10; return netip.AddrFrom4(b) }
	objects, err := m.generated()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"address: 10.1.0.2\n", "- 240.241.0.1\n", "defaultEndpoint: 127.0.0.1:9000\n"} {
		if !strings.Contains(string(objects), want) {
			t.Errorf("the objects lack %q:\n%s", want, objects)
		}
	}
	if strings.Contains(string(objects), "bind:") {
		t.Errorf("Envoy would bind to an address:\n%s", objects)
	}
	env := fmt.Sprint(m.environment(m.workloads[0]))
	if !strings.Contains(env, "{ADDRESS 10.1.0.2}") || strings.Contains(strings.ToLower(env), "proxy") {
		t.Errorf("the environment is %s", env)
	}
	if got := m.proxyConfig("/envoy")["discoveryAddress"]; got != "10.1.0.1:15012" {
		t.Errorf("the control plane is at %v", got)
	}
}
