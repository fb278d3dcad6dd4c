// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/file"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// unchecked is what commands say that know no control plane.
const unchecked = "not checked: services, workloads and objects that the store does not have, because no control plane is known; outrigger analyze --control ADDRESS checks them\n"

const (
	stop    = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: stop, namespace: shop}\nspec: {action: DENY, rules: [{}]}\n"
	nothing = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: nothing, namespace: shop}\nspec: {}\n"
	some    = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: some, namespace: shop}\nspec: {rules: [{to: [{operation: {methods: [GET]}}]}]}\n"
	web     = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: NAME, namespace: shop}\nspec: {hosts: [web], http: [{route: [{destination: {host: web}}]}]}\n"

	denies = "WARNING OUT0002 AuthorizationPolicy/shop/stop  stop.yaml:1: spec.rules[0] has no condition, so the policy denies every request " +
		"to all workloads of shop. Add from, to or when to the rule, unless this is meant.\n"
	question = "The change denies all requests to a workload. Make it? [y/N] "
)

func TestApplyAsks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args, answer string
		code         int
		errs         string
	}{
		"no terminal":   {"", "", 0, denies},
		"yes":           {"", "y\n", 0, denies + question},
		"no":            {"", "n\n", 1, denies + question + "outrigger: nothing was written; --yes applies the change without the question\n"},
		"an empty line": {"", "\n", 1, denies + question + "outrigger: nothing was written; --yes applies the change without the question\n"},
		"the flag":      {"--yes", "n\n", 0, denies},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			s.answer = c.answer
			s.file("stop.yaml", stop)
			code, out, errs := s.run(append([]string{"apply", "-f", s.dir + "/stop.yaml"}, strings.Fields(c.args)...)...)
			key := model.Key{Kind: model.AuthorizationPolicy, Namespace: "shop", Name: "stop"}
			if exists := s.store("memory://").Get(key) != nil; code != c.code || errs != c.errs || exists != (c.code == 0) {
				t.Errorf("code %d, exists: %v\n%s%s", code, exists, out, errs)
			}
			if code == 0 { // applied again, nothing is new
				if code, _, errs := s.run("apply", "-f", s.dir+"/stop.yaml"); code != 0 || errs != "" {
					t.Errorf("again: code %d, %s", code, errs)
				}
			}
		})
	}
}

// TestApplyAsksOnTerminal asks on the terminal while standard input has the objects.
func TestApplyAsksOnTerminal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args, answer string
		code         int
		asked        string
	}{
		"yes":      {"", "yes\n", 0, question},
		"no":       {"", "\n", 1, question},
		"closed":   {"", "", 1, question},
		"the flag": {"--yes", "", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			s.in, s.terminal = stop, &terminal{keys: strings.NewReader(c.answer)}
			code, out, errs := s.run(append([]string{"apply", "-f", "-"}, strings.Fields(c.args)...)...)
			exists := s.store("memory://").Get(model.Key{Kind: model.AuthorizationPolicy, Namespace: "shop", Name: "stop"}) != nil
			if asked := s.terminal.String(); code != c.code || exists != (code == 0) || asked != c.asked || s.terminal.closed != (asked != "") || strings.Contains(errs, question) {
				t.Errorf("code %d, exists: %v, asked %q\n%s%s", code, exists, asked, out, errs)
			}
		})
	}
	s := newShell(t)
	s.in = stop
	if code, _, errs := s.run("apply", "-f", "-"); code != 0 || !strings.Contains(errs, "OUT0002") || strings.Contains(errs, question) {
		t.Errorf("without a terminal: code %d\n%s", code, errs)
	}
}

// TestApplyShowsFindings compares the findings of a change with those of the objects in the store.
func TestApplyShowsFindings(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, c := range []struct{ text, says string }{
		{strings.Replace(web, "NAME", "a", 1), ""},
		{strings.Replace(web, "NAME", "b", 1), "ERROR IST0109 VirtualService/shop/b  file.yaml:1"},
		{strings.Replace(web, "NAME", "b", 1), ""}, // known already
		{nothing, "WARNING OUT0003 AuthorizationPolicy/shop/nothing"},
		{some, ""},
		{strings.Replace(nothing, "name: nothing", "name: other", 1), ""}, // some allows requests
	} {
		s.file("file.yaml", c.text)
		code, out, errs := s.run("apply", "-f", s.dir+"/file.yaml")
		if code != 0 || !strings.Contains(errs, c.says) || (errs == "") != (c.says == "") || out == "" {
			t.Errorf("code %d, want %q:\n%s%s", code, c.says, out, errs)
		}
	}
}

// TestApplyAsksControlPlane takes the findings of the running control plane, at most some of them.
func TestApplyAsksControlPlane(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.analyze = func(change analyze.Change) (r analyze.Result, err error) {
		if strings.Contains(change.Objects, "name: a\n") {
			for i := range maxReviewed + 2 {
				r.Findings = append(r.Findings, analyze.Finding{
					Code: "IST0101", Severity: analyze.Error, Object: analyze.Object{Kind: "VirtualService", Namespace: "shop", Name: "a"}, Message: strings.Repeat("New. ", i+1),
				})
			}
		}
		if len(change.Created) != 1-len(change.Deleted) {
			t.Errorf("the change is %+v", change)
		}
		for _, key := range change.Deleted {
			r.Findings = append(r.Findings, analyze.Finding{Code: "OUT0003", Severity: analyze.Warning, Source: "other.yaml:3", Message: key.String()})
		}
		return r, nil
	}
	s.file("file.yaml", strings.Replace(web, "NAME", "a", 1))
	code, _, errs := s.run("apply", "-f", s.dir+"/file.yaml")
	if code != 0 || strings.Count(errs, "ERROR IST0101 VirtualService/shop/a  file.yaml:1") != maxReviewed || !strings.Contains(errs, "2 more findings not listed") {
		t.Errorf("code %d:\n%s", code, errs)
	}
	s.answer = "n\n"
	if code, _, errs := s.run("delete", "vs", "a", "-n", "shop"); code != 1 || !strings.HasPrefix(errs, "WARNING OUT0003   other.yaml:3: VirtualService/shop/a") || !strings.Contains(errs, question) {
		t.Errorf("code %d:\n%s", code, errs)
	}
	s.file("file.yaml", strings.NewReplacer("NAME", "c", "hosts: [web]", "hosts: [c]").Replace(web))
	s.analyze = func(analyze.Change) (analyze.Result, error) { return analyze.Result{}, errors.New("it is away") }
	if code, _, errs := s.run("apply", "-f", s.dir+"/file.yaml"); code != 0 || errs != strings.Replace(unchecked, "no control plane is known", "it is away", 1) {
		t.Errorf("code %d:\n%s", code, errs)
	}
	// Another store is not that of the control plane.
	s.unsaid = ""
	if code, _, errs := s.run("apply", "-f", s.dir+"/file.yaml", "--store", "memory://other"); code != 0 || errs != unchecked {
		t.Errorf("code %d:\n%s", code, errs)
	}
}

// TestDeleteAsks deletes the policy that allows requests beside one that allows none.
func TestDeleteAsks(t *testing.T) {
	t.Parallel()
	for answer, code := range map[string]int{"y\n": 0, "n\n": 1} {
		s := newShell(t)
		s.file("a.yaml", nothing+"---\n"+some)
		if code, _, errs := s.run("apply", "-f", s.dir+"/a.yaml"); code != 0 || errs != "" {
			t.Fatalf("code %d: %s", code, errs)
		}
		s.answer = answer
		got, _, errs := s.run("delete", "authorizationpolicy", "some", "-n", "shop")
		exists := s.store("memory://").Get(model.Key{Kind: model.AuthorizationPolicy, Namespace: "shop", Name: "some"}) != nil
		if got != code || exists != (code == 1) || !strings.Contains(errs, "OUT0003") || !strings.Contains(errs, question) {
			t.Errorf("%q: code %d, exists: %v\n%s", answer, got, exists, errs)
		}
	}
}

// TestCreateAsks checks that create and replace ask, too, also for conditions that accept everything.
func TestCreateAsks(t *testing.T) {
	t.Parallel()
	const wide = `{to: [{operation: {paths: ["*"]}}], from: [{source: {ipBlocks: [0.0.0.0/0, "::/0"]}}]}`
	s := newShell(t)
	s.answer = "n\n"
	s.file("stop.yaml", strings.Replace(stop, "{}", wide, 1))
	if code, _, errs := s.run("create", "-f", s.dir+"/stop.yaml"); code != 1 || !strings.Contains(errs, "accepts all values") || !strings.Contains(errs, question) {
		t.Errorf("create: code %d: %s", code, errs)
	}
	s.file("start.yaml", strings.Replace(stop, "{}", `{to: [{operation: {paths: ["*"], methods: [GET]}}]}`, 1))
	if code, _, errs := s.run("create", "-f", s.dir+"/start.yaml"); code != 0 || strings.Contains(errs, "OUT0002") {
		t.Errorf("create: code %d: %s", code, errs)
	}
	s.file("parts.yaml", strings.Replace(stop, "{}", `{to: [{operation: {methods: [GET]}}]}, {to: [{operation: {notMethods: [GET]}}]}`, 1))
	if code, _, errs := s.run("apply", "-f", s.dir+"/parts.yaml"); code != 1 || !strings.Contains(errs, "OUT0020") || !strings.Contains(errs, question) {
		t.Errorf("apply of parts: code %d: %s", code, errs)
	}
	if code, _, errs := s.run("replace", "-f", s.dir+"/stop.yaml"); code != 1 || !strings.Contains(errs, question) {
		t.Errorf("replace: code %d: %s", code, errs)
	}
}

// TestOrder checks that the problems of files that are read at the same time have the order of the files,
// and that the first file that cannot be read is the one that is named.
func TestOrder(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	var want strings.Builder
	for i := range 60 {
		name := fmt.Sprintf("config/%02d.yaml", i)
		s.file(name, strings.Repeat(strings.Replace(web, "NAME", "same", 1)+"---\n", 1+(60-i)/10)+"metadata: {}\n")
		fmt.Fprintf(&want, "error: %s\n", name)
	}
	code, _, errs := s.run("validate", "-f", s.dir+"/config")
	last, order := "", []string{}
	for line := range strings.Lines(errs) {
		if file := line[:min(len(line), len("error: config/00.yaml"))]; strings.HasPrefix(file, "error: config/") && file != last && !strings.Contains(line, "the same object is in") {
			last, order = file, append(order, file)
		}
	}
	if got := strings.Join(order, "\n") + "\n"; code != 1 || got != want.String() {
		t.Errorf("code %d, the problems are of\n%s", code, got)
	}
	if code, _, errs := s.run("validate", "-f", s.dir+"/config", "-f", s.dir+"/gone", "-f", s.dir+"/absent"); code != 2 || !strings.Contains(errs, "gone") {
		t.Errorf("code %d: %s", code, errs)
	}
}

// TestLinks checks that links to directories are followed, and that loops end.
func TestLinks(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("config/.hidden/a.yaml", strings.Replace(web, "NAME", "a", 1))
	if err := os.Symlink(".hidden", s.dir+"/config/in"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..", s.dir+"/config/.hidden/loop"); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := s.run("validate", "-f", s.dir+"/config"); code != 0 || !strings.HasPrefix(out, "1 object valid") {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
}

// TestLinksOutside checks that validate accepts the links that a store follows, and no others; commands that
// write follow all.
func TestLinksOutside(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("config/a.yaml", strings.Replace(web, "NAME", "a", 1))
	s.file("other/b.yaml", strings.Replace(web, "NAME", "b", 1))
	for name, target := range map[string]string{"file.yaml": "other/b.yaml", "in": "other"} {
		link := s.dir + "/config/" + name
		if err := os.Symlink(s.dir+"/"+target, link); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			links string
			takes bool
		}{{"", false}, {"links=" + s.dir + "/other", true}, {"links=/", true}, {"links=" + s.dir + "/config", false}} {
			store, err := config.Open("fs://"+s.dir+"/config?"+c.links, config.OpenConfig{Drivers: map[string]config.Driver{"fs": file.Open}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- store.Run(ctx) }()
			<-store.Synced()
			n := len(store.List(model.VirtualService, ""))
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			args := []string{"validate", "-f", s.dir + "/config"}
			if c.links != "" {
				args = append(args, "--"+c.links)
			}
			code, out, errs := s.run(args...)
			if c.takes != (n == 2) || c.takes != (code == 0) || c.takes != strings.HasPrefix(out, "2 objects valid") || c.takes == strings.Contains(errs, "config/"+name+": it is a link to other") {
				t.Errorf("%s %s: the store has %d objects, validate returns %d: %s%s", name, c.links, n, code, out, errs)
			}
		}
		if code, out, errs := s.run("apply", "-f", s.dir+"/config", "--dry-run"); code != 0 || strings.Count(out, "would be applied") != 2 {
			t.Errorf("apply: %d %s%s", code, out, errs)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeleteShowsFindings deletes objects that others refer to. Without a control plane, nothing else is
// known to have them; what was missing before, or may be outside of the store, is not said.
func TestDeleteShowsFindings(t *testing.T) {
	t.Parallel()
	const network = "---\napiVersion: networking.istio.io/v1\nkind: "
	const all = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: web, namespace: shop}\n" +
		"spec: {hosts: [web.example.com], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: web}}}\n" +
		network + "WorkloadEntry\nmetadata: {name: web-1, namespace: shop}\nspec: {address: 10.0.0.1, labels: {app: web}}\n" +
		network + "DestinationRule\nmetadata: {name: web, namespace: shop}\nspec: {host: web.example.com, subsets: [{name: v1}]}\n" +
		network + "Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [web.example.com]}]}\n" +
		network + "VirtualService\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web.example.com], gateways: [edge], http: [{delegate: {name: part}}]}\n" +
		network + "VirtualService\nmetadata: {name: part, namespace: shop}\nspec: {http: [{route: [{destination: {host: web.example.com, subset: v1}}], mirror: {host: other}}]}\n"
	line := regexp.MustCompile(`all\.yaml:[0-9]+`)
	for key, says := range map[string]string{
		"se/web":                           "ERROR IST0101 VirtualService/shop/part  all.yaml:LINE: spec.http[0].route[0].destination.host: no service has the host",
		"we/web-1":                         "WARNING OUT0008 VirtualService/shop/part  all.yaml:LINE: spec.http[0].route[0].destination.host: the service \"web.example.com\" has no",
		"dr/web":                           "ERROR IST0101 VirtualService/shop/part  all.yaml:LINE: spec.http[0].route[0].destination.subset: no DestinationRule for",
		"gateway.networking.istio.io/edge": "ERROR IST0101 VirtualService/shop/web  all.yaml:LINE: spec.gateways[0]: there is no Gateway shop/edge",
		"vs/part":                          "ERROR IST0101 VirtualService/shop/web  all.yaml:LINE: spec.http[0].delegate: there is no",
		"vs/web":                           "INFO OUT0011 Gateway/shop/edge",
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			s.file("all.yaml", all)
			if code, _, errs := s.run("apply", "-f", s.dir+"/all.yaml"); code != 0 || errs != "" {
				t.Fatalf("code %d: %s", code, errs)
			}
			s.unsaid = ""
			if code, out, errs := s.run("delete", key, "-n", "shop"); code != 0 || !strings.Contains(line.ReplaceAllString(errs, "all.yaml:LINE"), says) || out == "" {
				t.Errorf("code %d, want %q:\n%s%s", code, says, out, errs)
			}
		})
	}
}
