// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"path/filepath"
	"strings"
	"testing"
)

const originFile = `network: 127.77.9.0/24
mesh:
  connectTimeout: 3s
  inboundTrafficPolicy: {mode: LOCALHOST}
workloads:
- {name: idle, namespace: back, service: store, command: [sh]}
- {name: other, service: store, command: [sh], port: 9001}
- {name: a, namespace: back, service: store, command: [sh], port: 9002, servicePort: 80}
- {name: b, namespace: back, service: store, command: [sh], port: 9003, servicePort: 80}
`

func TestConfigProblem(t *testing.T) {
	t.Parallel()
	m, problems := decode([]byte(originFile))
	if m == nil || len(problems) > 0 {
		t.Fatal(problems)
	}
	m.file = "/home/me/shop/mesh.yaml"
	s := &state{dir: "/tmp/outrigger-up-1"}
	u := &Mesh{mesh: m, cfg: Config{WorkDir: "/home/me/shop"}}
	generated := func(file, rest string) string {
		return `time=2026-01-01T00:00:00Z level=WARN msg="a configuration object has a problem" source=` + s.path(file) + rest
	}
	const about = ` component=config kind=VirtualService name=catalog namespace=default source=/home/me/shop/config/catalog.yaml:26 reason="unknown field \"wieght\" in spec: did you mean \"weight\"?"`
	for name, tc := range map[string]struct {
		line  string
		level level
		want  string
	}{
		"a problem": {
			"time=2026-01-01T00:00:00Z level=WARN msg=\"a configuration object has a problem\"" + about, levelWarning,
			`config/catalog.yaml:26: VirtualService default/catalog: unknown field "wieght" in spec: did you mean "weight"?`,
		},
		"it is gone": {
			"time=2026-01-01T00:00:00Z level=INFO msg=\"a problem with a configuration object is resolved\"" + about, levelInfo,
			`config/catalog.yaml:26: VirtualService default/catalog: fixed: unknown field "wieght" in spec: did you mean "weight"?`,
		},
		"of a file elsewhere": {
			`level=WARN msg="a configuration object has a problem" kind="" name="" namespace="" source=/etc/x.yaml:1 reason="no YAML"`, levelWarning,
			"/etc/x.yaml:1: no YAML",
		},
		"of a setting": {
			`level=WARN msg="a field of the mesh config has no effect in this version" source=/tmp/outrigger-up-1/control/mesh.yaml:7 name=inboundTrafficPolicy`, levelWarning,
			"mesh.yaml:4: mesh: inboundTrafficPolicy has no effect in this version",
		},
		"of a generated service": {
			generated("config/workloads.yaml", `:2 kind=ServiceEntry namespace=back name=store reason=taken`), levelWarning,
			"mesh.yaml:8: ServiceEntry back/store: taken",
		},
		"of a generated workload": {
			generated("config/workloads.yaml", `:99 kind=WorkloadEntry namespace=back name=b reason=taken`), levelWarning,
			"mesh.yaml:9: WorkloadEntry back/b: taken",
		},
		"of a generated object that is unknown": {
			generated("config/workloads.yaml", `:99 kind=Sidecar namespace=back name=c reason=taken`), levelWarning,
			"/tmp/outrigger-up-1/config/workloads.yaml:99: Sidecar back/c: taken",
		},
		"something else": {line: `time=2026-01-01T00:00:00Z level=INFO msg="proxy connected" proxy=a`},
		"no log line":    {line: "panic: a = b"},
		"broken quotes":  {line: `msg="a configuration object`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, got, ok := u.configProblem(s, tc.line)
			if got != tc.want || l != tc.level || ok != (tc.want != "") {
				t.Errorf("got %d, %q, %t; want %d, %q", l, got, ok, tc.level, tc.want)
			}
		})
	}
}

// TestReplacedSidecar checks that the user sees what a Sidecar needs that replaces a generated one.
func TestReplacedSidecar(t *testing.T) {
	t.Parallel()
	m := mustLoad(t, pairMesh)
	s := &state{dir: "/tmp/outrigger-up-1"}
	u := &Mesh{mesh: m, cfg: Config{WorkDir: filepath.Dir(m.file)}}
	l, got, ok := u.configProblem(s, `level=WARN msg="a configuration object has a problem" source=`+s.objects()+`:30 kind=Sidecar namespace=default name=web reason="config/web.yaml:1 replaces it"`)
	const want = `: Sidecar default/web: config/web.yaml:1 replaces it; it needs {"ingress":[{"bind":"127.1.0.2","defaultEndpoint":"127.0.0.1:9000","port":{"name":"http","number":80,"protocol":"HTTP"}}],` +
		`"workloadSelector":{"labels":{"outrigger.mesh/workload":"web"}}} for the requests to the workload`
	if !ok || l != levelWarning || !strings.HasSuffix(got, want) {
		t.Errorf("got %d, %q, %t, want %q", l, got, ok, want)
	}
}
