// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm/wasmtest"
)

// pluginNetwork contains the addresses of this test.
const pluginNetwork = "127.1.14."

// TestEnvoyRejectsPlugin applies a WasmPlugin with a broken module to a workload that has a working
// plugin. The tools must report what the data plane does: with FAIL_OPEN requests pass and the
// working plugin stays in force, with FAIL_CLOSE they fail; in both cases the broken plugin is
// rejected. After its deletion nothing is rejected. The same name, applied again, is treated as
// before, and is in force once its module works. A broken script is rejected in the same way.
func TestEnvoyRejectsPlugin(t *testing.T) {
	wasmtest.NeedRuntime(t, envoyBinary(t))
	s := newShop(t)
	s.edit("mesh.yaml", "config: config\n", "network: "+pluginNetwork+"0/24\nconfig: config\n")
	modules := t.TempDir()
	for name, module := range map[string][]byte{
		"good": wasmtest.Module("x-good", "1"), "other": wasmtest.Module("x-other", "1"),
		"text": []byte("garbage"), "binary": []byte("\x00asm\x01\x00\x00\x00\xff\xff"),
	} {
		if err := os.WriteFile(filepath.Join(modules, name), module, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.setenv("outrigger-agent", "OUTRIGGER_WASM_FILE_DIR", modules)
	s.start()
	s.waitFor("Ctrl-C ends it", 2*time.Minute)
	p := plugins{shop: s, modules: modules, client: throughProxy(t, pluginNetwork+"2")}

	p.apply(t, "good", "good", "FAIL_CLOSE")
	p.answers(t, "200 x-good")
	p.inForce(t, "wasmplugin", "good")
	p.allWell(t)
	p.same(t)
	for _, module := range []string{"text", "binary"} {
		p.apply(t, "bad", module, "FAIL_OPEN")
		p.rejected(t, "wasmplugin", "bad")
		p.answers(t, "200 x-good")
		p.inForce(t, "wasmplugin", "good")
		p.apply(t, "bad", module, "FAIL_CLOSE")
		p.fails(t)
		p.rejected(t, "wasmplugin", "bad")
		p.delete(t, "wasmplugin", "bad")
		p.answers(t, "200 x-good")
		p.allWell(t)
	}
	p.applyScript(t, "function (")
	p.fails(t)
	p.rejected(t, "trafficextension", "script")
	p.inForce(t, "wasmplugin", "good")
	p.applyScript(t, `function envoy_on_response(h) h:headers():add("x-other", "1") end`)
	p.answers(t, "200 x-good x-other")
	p.inForce(t, "trafficextension", "script")
	p.applyScript(t, "function (")
	p.rejected(t, "trafficextension", "script")
	p.answers(t, "200 x-good x-other") // with the version before
	p.delete(t, "trafficextension", "script")
	p.answers(t, "200 x-good")
	p.allWell(t)
	p.apply(t, "bad", "binary", "FAIL_CLOSE")
	p.fails(t)
	p.apply(t, "bad", "other", "FAIL_CLOSE")
	p.answers(t, "200 x-good x-other")
	p.inForce(t, "wasmplugin", "bad")
	p.allWell(t)
}

// same checks that the filters of an Envoy do not differ from those that the control plane gave, although the agent
// has fetched their modules.
func (p plugins) same(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		has, err := p.tool("proxy", "ecds", "catalog-v1", "--live")
		out, diff := p.tool("proxy", "all", "catalog-v1", "--diff")
		if err == nil && diff == nil && strings.Contains(has, "default.good") && strings.Contains(out, "No differences in ") {
			return ""
		}
		time.Sleep(20 * time.Millisecond)
		return has + out
	})
}

// plugins is a shop whose catalog has WasmPlugins.
type plugins struct {
	*shop
	modules string
	client  *http.Client
}

// apply writes a plugin.
func (p plugins) apply(t *testing.T, name, module, failStrategy string) {
	t.Helper()
	p.write(t, fmt.Sprintf(`apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: %s, namespace: default}
spec:
  selector: {matchLabels: {app: catalog}}
  url: file://%s
  failStrategy: %s
`, name, filepath.Join(p.modules, module), failStrategy))
}

// applyScript writes a plugin that runs Lua.
func (p plugins) applyScript(t *testing.T, code string) {
	t.Helper()
	p.write(t, fmt.Sprintf(`apiVersion: extensions.istio.io/v1alpha1
kind: TrafficExtension
metadata: {name: script, namespace: default}
spec:
  selector: {matchLabels: {app: catalog}}
  lua: {inlineCode: %q}
`, code))
}

func (p plugins) write(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plugin.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := p.tool("apply", "--store", p.store(), "-f", file); err != nil {
		t.Fatalf("apply: %v\n%s", err, out)
	}
}

func (p plugins) delete(t *testing.T, kind, name string) {
	t.Helper()
	if out, err := p.tool("delete", kind, name, "--store", p.store()); err != nil {
		t.Fatalf("delete %s: %v\n%s", name, err, out)
	}
}

func (p plugins) store() string { return "fs://" + filepath.Join(p.dir, "config") }

// answer returns the status of a request to the catalog, and the modules that added a header.
func (p plugins) answer(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, catalog, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err.Error()
	}
	_ = resp.Body.Close() // only the header matters
	got := fmt.Sprint(resp.StatusCode)
	for _, h := range []string{"x-good", "x-other"} {
		if resp.Header.Get(h) != "" {
			got += " " + h
		}
	}
	return got
}

// answers waits until 30 requests in a row have this result at both versions of the catalog.
func (p plugins) answers(t *testing.T, want string) {
	t.Helper()
	p.until(t, func() string {
		for range 30 {
			if got := p.answer(t); got != want {
				return fmt.Sprintf("the catalog answers %q, want %q", got, want)
			}
		}
		return ""
	})
}

// fails waits until no request passes: 30 in a row.
func (p plugins) fails(t *testing.T) {
	t.Helper()
	p.until(t, func() string {
		for range 30 {
			if got := p.answer(t); strings.HasPrefix(got, "200") {
				return fmt.Sprintf("the catalog answers %q, want an error", got)
			}
		}
		return ""
	})
}

// inForce waits until all tools report a plugin as in force.
func (p plugins) inForce(t *testing.T, kind, name string) {
	t.Helper()
	p.says(t, true, []string{"explain", kind + "/" + name}, "2 of 2 proxies have it in force")
	p.says(t, true, []string{"describe", kind, name, "--store", p.store()}, "reason: Acknowledged")
}

// rejected waits until all tools report a plugin as rejected.
func (p plugins) rejected(t *testing.T, kind, name string) {
	t.Helper()
	p.says(t, false, []string{"explain", kind + "/" + name}, "0 of 2 proxies have it in force", "2 have rejected it")
	p.says(t, true, []string{"describe", kind, name, "--store", p.store()}, "reason: Rejected")
	p.says(t, false, []string{"status"}, "ECDS", "REJECTED", "default."+name)
}

// allWell waits until no tool reports a rejection.
func (p plugins) allWell(t *testing.T) {
	t.Helper()
	out := p.says(t, true, []string{"status"}, "ECDS", "4 proxies: all have what they were sent.")
	out += p.says(t, true, []string{"explain", "wasmplugin/good"}, "2 of 2 proxies have it in force")
	out += p.says(t, true, []string{"describe", "wasmplugin", "good", "--store", p.store()}, "reason: Acknowledged")
	if strings.Contains(strings.ToLower(out), "rejected") {
		t.Errorf("something is rejected:\n%s", out)
	}
}

// says runs the tool until it succeeds or fails as expected, with these texts in its output.
func (p plugins) says(t *testing.T, succeeds bool, args []string, want ...string) (out string) {
	t.Helper()
	p.until(t, func() string {
		var err error
		if out, err = p.tool(args...); (err == nil) != succeeds {
			return fmt.Sprintf("%v: %v\n%s", args, err, out)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				return fmt.Sprintf("%v does not say %q:\n%s", args, w, out)
			}
		}
		return ""
	})
	return out
}

// until polls check until it returns no complaint.
func (p plugins) until(t *testing.T, check func() string) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		complaint := check()
		if complaint != "" {
			time.Sleep(50 * time.Millisecond) // others need the machine, too
		}
		return complaint
	})
}
