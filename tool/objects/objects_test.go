// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	metav1alpha1 "istio.io/api/meta/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/file"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// shell runs commands on in-memory stores.
type shell struct {
	t      *testing.T
	stores map[string]*memory.Store
	dir    string
	in     string
	past   Past
	// answer is what a user types on the terminal; empty for no terminal.
	answer string
	// terminal is the terminal while files are read from standard input; nil for none.
	terminal *terminal
	// analyze answers for a running control plane; optional.
	analyze func(analyze.Change) (analyze.Result, error)
	unsaid  string // is left out of errors
	width   int    // of the terminal; 0 for none
	// open opens a store; optional.
	open func(address string) (config.Store, error)
}

// terminal is one on which a user answers.
type terminal struct {
	keys io.Reader
	bytes.Buffer
	closed bool
}

// Read implements [io.Reader].
func (t *terminal) Read(p []byte) (int, error) { return t.keys.Read(p) }

// Close implements [io.Closer].
func (t *terminal) Close() error { t.closed = true; return nil }

func newShell(t *testing.T) *shell {
	return &shell{t: t, stores: map[string]*memory.Store{}, dir: t.TempDir(), unsaid: unchecked, past: past{}}
}

func (s *shell) store(address string) *memory.Store {
	if s.stores[address] == nil {
		s.stores[address] = memory.New(address)
	}
	return s.stores[address]
}

// file writes a file below the directory of the shell and returns its path.
func (s *shell) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// run returns the exit code and the output. Paths in the shell's directory are made relative.
func (s *shell) run(args ...string) (code int, out, errs string) {
	s.t.Helper()
	root := &cobra.Command{Use: "outrigger", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands(Config{
		Open: func(address string, _ []model.Kind) (config.Store, error) {
			if s.open != nil {
				return s.open(address)
			}
			return s.store(address), nil
		},
		Default: func() (string, error) { return "memory://", nil },
		Past:    func(*cobra.Command) Past { return s.past },
		In:      strings.NewReader(s.in + s.answer), Terminal: s.answer != "", Width: s.width,
		OpenTerminal: func() (io.ReadWriteCloser, error) {
			if s.terminal == nil {
				return nil, errors.New("no terminal")
			}
			return s.terminal, nil
		},
		Analyze: func(_ context.Context, store string, given bool, change analyze.Change) (analyze.Result, error) {
			if s.analyze == nil || store != "memory://" || given {
				return analyze.Result{}, analyze.ErrNoControl
			}
			return s.analyze(change)
		},
	})...)
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	root.SetFlagErrorFunc(WrongFlag)
	exit := &ExitError{Code: 1}
	switch err := root.ExecuteContext(s.t.Context()); {
	case err == nil:
		exit.Code = 0
	case errors.As(err, &exit) && exit.Err == nil:
	default:
		fmt.Fprintln(&stderr, "outrigger:", err)
	}
	short := strings.NewReplacer(s.dir+"/", "", s.unsaid, "")
	return exit.Code, short.Replace(stdout.String()), short.Replace(stderr.String())
}

// secondsOld is the age of an object in a table, which depends on how busy the machine is.
var secondsOld = regexp.MustCompile(` +[0-9]+s\n`)

// want runs a command and compares its complete output.
func (s *shell) want(command string, code int, out, errs string) {
	s.t.Helper()
	args := strings.Fields(strings.ReplaceAll(command, "DIR", s.dir))
	gotCode, gotOut, gotErrs := s.run(args...)
	gotOut = secondsOld.ReplaceAllString(gotOut, "   0s\n")
	if gotCode != code {
		s.t.Errorf("outrigger %s: exit code %d, want %d", command, gotCode, code)
	}
	if diff := cmp.Diff(out, gotOut); diff != "" {
		s.t.Errorf("outrigger %s: output (-want +got):\n%s", command, diff)
	}
	if diff := cmp.Diff(errs, gotErrs); diff != "" {
		s.t.Errorf("outrigger %s: errors (-want +got):\n%s", command, diff)
	}
}

const entry = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: one, labels: {team: web}}
spec: {address: 10.0.0.1}
---
apiVersion: networking.istio.io/v1beta1
kind: WorkloadEntry
metadata: {name: two, namespace: shop}
spec: {address: 10.0.0.2}
`

func TestWriteAndRead(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("entries.yaml", entry)
	s.want("create -f DIR/entries.yaml", 0, "workloadentry/one created\nworkloadentry/two in shop created\n", "")
	s.want("create -f DIR/entries.yaml", 1, "",
		"error: entries.yaml:1: create WorkloadEntry/default/one: it already exists\n"+
			"error: entries.yaml:6: create WorkloadEntry/shop/two: it already exists\n")
	s.want("apply -f DIR/entries.yaml", 0, "workloadentry/one unchanged\nworkloadentry/two in shop unchanged\n", "")
	s.file("entries.yaml", strings.Replace(entry, "10.0.0.1", "10.0.0.9", 1))
	s.want("apply -f DIR --dry-run", 0, "workloadentry/one would be applied\nworkloadentry/two in shop would be applied\n", "")
	s.want("apply -f DIR", 0, "workloadentry/one applied\nworkloadentry/two in shop unchanged\n", "")
	s.want("get workloadentries -A", 0, "NAMESPACE   NAME   ADDRESS    AGE\ndefault     one    10.0.0.9   0s\nshop        two    10.0.0.2   0s\n", "")
	s.want("get we -l team=web -A -o name", 0, "workloadentry/one\n", "")
	s.want("get WorkloadEntry/one", 0, "NAME   ADDRESS    AGE\none    10.0.0.9   0s\n", "")
	s.want("get we,vs -n elsewhere", 0, "", "no objects found\n")
	s.want("get we one three", 1, "NAME   ADDRESS    AGE\none    10.0.0.9   0s\n", "error: workloadentry/three: it does not exist\n")
	code, out, _ := s.run("get", "we", "one", "-o", "yaml")
	if code != 0 || !strings.HasPrefix(out, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  creationTimestamp:") ||
		!strings.Contains(out, "  address: 10.0.0.9\n") {
		t.Errorf("get -o yaml: got exit code %d\n%s", code, out)
	}
	s.want("delete we two", 1, "", "error: workloadentry/two: it does not exist\n")
	s.want("delete we two --ignore-not-found", 0, "", "")
	s.want("delete we -l team=web", 0, "workloadentry/one deleted\n", "")
	s.want("delete -f DIR", 1, "workloadentry/two in shop deleted\n",
		"error: delete WorkloadEntry/default/one: it does not exist\noutrigger: 1 of 2 failed; the others are done\n")
}

// TestDeleteFiles deletes the objects in files, even if an object is invalid or in several files.
func TestDeleteFiles(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("a.yaml", entry)
	s.want("create -f DIR/a.yaml", 0, "workloadentry/one created\nworkloadentry/two in shop created\n", "")
	s.file("b.yaml", strings.ReplaceAll(entry, "10.0.0.1", "10.0.0.9"))
	s.file("c.yaml", strings.ReplaceAll(entry, "address: 10.0.0.2", "address: not an address"))
	s.want("delete -f DIR", 0, "workloadentry/one deleted\nworkloadentry/two in shop deleted\n", "")
	s.file("d.yaml", "kind: [\n")
	if code, out, errs := s.run("delete", "-f", s.dir); code != 1 || out != "" || !strings.Contains(errs, "d.yaml:1: this is not YAML") || !strings.Contains(errs, "nothing was deleted") {
		t.Errorf("got exit code %d, output %s, errors %s", code, out, errs)
	}
}

// TestDeleteBookinfoRules deletes the rules of the Bookinfo example by their directory, which
// contains several versions of the same objects.
func TestDeleteBookinfoRules(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.want("create -f ../../examples/bookinfo/rules/virtual-service-reviews-v3.yaml", 0, "virtualservice/reviews created\n", "")
	if code, out, errs := s.run("delete", "-f", "../../examples/bookinfo/rules", "--ignore-not-found"); code != 0 || out != "virtualservice/reviews deleted\n" {
		t.Errorf("got exit code %d\n%s\n%s", code, out, errs)
	}
}

// TestInvalidObjects checks that an invalid object is not reported as missing, and that its last
// good version is shown if the store has one.
func TestInvalidObjects(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("config/entries.yaml", entry)
	dir, state := filepath.Join(s.dir, "config"), filepath.Join(s.dir, "state")
	open := func(state string, keep bool) (config.Store, error) {
		return file.New(file.Config{Dir: dir, Name: "fs://config", State: state, Keep: keep})
	}
	s.open = func(string) (config.Store, error) { return open("", false) }
	s.file("config/entries.yaml", strings.Replace(entry, "10.0.0.1", "not an address", 1))
	const reason = `it exists and is invalid (config/entries.yaml:4: spec.address is "not an address": it is not a host name; letters, digits, "-" and "." are allowed); ` +
		"a control plane that has read it before keeps its last valid version in force"
	s.want("get we one", 1, "", "error: workloadentry/one: "+reason+"\n")
	s.want("get we", 1, "", "error: workloadentry/one: "+reason+"\n")
	if code, _, errs := s.run("describe", "we", "one"); code != 1 || !strings.Contains(errs, reason) {
		t.Errorf("describe: got exit code %d %s", code, errs)
	}
	s.want("get we none", 1, "", "error: workloadentry/none: it does not exist\n")

	// A control plane reads the good version and the invalid one.
	s.file("config/entries.yaml", entry)
	control, err := open(state, true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- control.Run(ctx) }()
	<-control.Synced()
	s.file("config/entries.yaml", strings.Replace(entry, "10.0.0.1", "not an address", 1))
	for len(control.Problems()) == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.open = func(string) (config.Store, error) { return open(state, false) }
	if code, out, errs := s.run("get", "we", "one"); code != 0 || !strings.Contains(out, "10.0.0.1") {
		t.Errorf("get: got exit code %d %s%s", code, out, errs)
	}
	if code, out, _ := s.run("describe", "we", "one"); code != 0 || !strings.Contains(out, "address: 10.0.0.1") ||
		!strings.Contains(out, `error: spec.address is "not an address"`) || !strings.Contains(out, "the last good version stays in force") {
		t.Errorf("describe: got exit code %d %s", code, out)
	}
}

// TestReplaceKeepsOthersChanges checks that the output of get can be passed to replace, and that a
// concurrent change results in a conflict.
func TestReplaceKeepsOthersChanges(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.in = entry
	s.want("create -f -", 0, "workloadentry/one created\nworkloadentry/two in shop created\n", "")
	_, mine, _ := s.run("get", "we", "one", "-o", "yaml")
	s.file("mine.yaml", strings.Replace(mine, "10.0.0.1", "10.0.0.7", 1))
	if _, err := s.store("memory://").Patch(t.Context(), model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "one"}, func(c *model.Config) error {
		c.Labels["changed"] = "yes"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"replace", "apply"} {
		what := "update"
		s.want(verb+" -f DIR/mine.yaml", 1, "", "error: mine.yaml:1: "+what+
			" WorkloadEntry/default/one: it was changed in the meantime: read it again and repeat the change\n")
	}
	_, mine, _ = s.run("get", "we", "one", "-o", "json")
	s.file("mine.yaml", strings.Replace(mine, "10.0.0.1", "10.0.0.7", 1))
	s.want("replace -f DIR/mine.yaml", 0, "workloadentry/one replaced\n", "")
	s.file("none.yaml", "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: none}\nspec: {address: 10.0.0.1}\n")
	s.want("replace -f DIR/none.yaml", 1, "", "error: none.yaml:1: update WorkloadEntry/default/none: it does not exist\n")
}

const mistaken = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: bad}
spec: {adress: 10.0.0.1}
---
apiVersion: networking.istio.io/v1
kind: VirtualServise
metadata: {name: bad}
`

func TestValidate(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.file("good.yaml", entry)
	s.want("validate -f DIR/good.yaml", 0, "2 objects valid, 0 errors, 0 warnings\n", "")
	s.file("bad.yaml", mistaken)
	code, out, errs := s.run("validate", "-f", s.dir)
	if code != 1 || out != "" || !strings.Contains(errs, `error: bad.yaml:4: WorkloadEntry/default/bad: unknown field "adress" in spec: did you mean "address"?`) ||
		!strings.Contains(errs, `error: bad.yaml:7: VirtualServise//: kind "VirtualServise" is unknown: did you mean "VirtualService"?`) &&
			!strings.Contains(errs, `bad.yaml:7: kind "VirtualServise" is unknown: did you mean "VirtualService"?`) ||
		!strings.Contains(errs, "outrigger: 2 objects valid, ") {
		t.Errorf("validate: got exit code %d\n%s%s", code, out, errs)
	}
	s.file("others.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n---\n"+
		"apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nmetadata: {name: a}\n---\n"+entry)
	s.want("validate -f DIR/others.yaml", 0, "2 objects valid, 0 errors, 0 warnings; 3 objects for others skipped\n", "")
	if code, out, errs := s.run("validate", "--strict", "-f", filepath.Join(s.dir, "others.yaml")); code != 1 || strings.Count(errs, "is unknown") != 3 {
		t.Errorf("validate --strict: got exit code %d\n%s%s", code, out, errs)
	}
	if err := os.Remove(filepath.Join(s.dir, "others.yaml")); err != nil {
		t.Fatal(err)
	}
	// Nothing is written if there is any problem.
	if code, out, errs := s.run("apply", "-f", s.dir); code != 1 || out != "" || !strings.Contains(errs, "nothing was written") {
		t.Errorf("apply: got exit code %d\n%s%s", code, out, errs)
	}
	s.want("get all -A", 0, "", "no objects found\n")
	s.file("twice/a.yaml", entry)
	s.file("twice/b.yaml", entry)
	s.want("validate -f DIR/twice", 1, "",
		"error: twice/b.yaml:1: WorkloadEntry/default/one: the same object is in twice/a.yaml:1 already: remove one of them\n"+
			"error: twice/b.yaml:6: WorkloadEntry/shop/two: the same object is in twice/a.yaml:6 already: remove one of them\n"+
			"outrigger: 4 objects valid, 2 errors, 0 warnings\n")
}

func TestDiff(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.in = entry
	s.want("create -f -", 0, "workloadentry/one created\nworkloadentry/two in shop created\n", "")
	s.want("diff -f -", 0, "", "")
	s.in = strings.Replace(entry, "10.0.0.1", "10.0.0.5", 1)
	s.want("diff -f -", 1, `--- stored/workloadentry/one
+++ standard input:1
@@ -6,4 +6,4 @@
   labels:
     team: web
 spec:
-  address: 10.0.0.1
+  address: 10.0.0.5
`, "")
	s.in = "what: is this"
	if code, _, _ := s.run("diff", "-f", "-"); code != 2 {
		t.Errorf("diff of an invalid file: got exit code %d, want 2", code)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.in = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: x, labels: {b: "2", a: "1"}}
spec: {priority: 1, configPatches: [{applyTo: NETWORK_FILTER, match: {listener: {portName: a}}, patch: {operation: REMOVE}}]}
`
	if code, out, errs := s.run("create", "-f", "-"); code != 0 {
		t.Fatal(code, out, errs)
	}
	code, out, errs := s.run("describe", "envoyfilter/x")
	for _, text := range []string{
		"Name:             x\n", "Labels:           a=1, b=2\n", "  priority: 1\n",
		"Problems:\n  warning: spec.configPatches[0].match.listener.portName has no effect in this version\n",
	} {
		if code != 0 || errs != "" || !strings.Contains(out, text) {
			t.Errorf("describe: got exit code %d, errors %s; want output with %q:\n%s", code, errs, text, out)
		}
	}
}

// TestDescribeShowsAnalysis describes an object with a problem that only the control plane can
// detect.
func TestDescribeShowsAnalysis(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	c := &model.Config{
		Key:  model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "one"},
		Spec: &networkingv1alpha3.WorkloadEntry{Address: "10.0.0.1"},
	}
	var err error
	if c.ResourceVersion, err = s.store("memory://a").Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Status = &metav1alpha1.IstioStatus{Conditions: []*metav1alpha1.IstioCondition{
		{Type: "PassedAnalysis", Status: "False", Message: "no service selects it"},
	}}
	if _, err := s.store("memory://a").UpdateStatus(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	code, out, errs := s.run("describe", "workloadentry/one", "--store", "memory://a")
	if code != 0 || !strings.HasSuffix(out, "Problems:\n  warning: no service selects it\n") {
		t.Errorf("describe: got exit code %d, errors %s:\n%s", code, errs, out)
	}
	for text, want := range map[string]bool{"": false, "a": false, "a; b": false, "b; c; a": true, "c": true} {
		if got := unlisted(text, []model.Problem{{Reason: "a"}, {Reason: "b"}}); got != want {
			t.Errorf("unlisted(%q) = %t, want %t", text, got, want)
		}
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	born := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	old := &model.Config{
		Key:     model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "one"},
		Created: born, Annotations: map[string]string{kubectlAnnotation: "{}", "keep": "me"},
		Spec: &networkingv1alpha3.WorkloadEntry{Address: "10.0.0.1"},
	}
	if _, err := s.store("memory://from").Create(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	const stores = "migrate --from memory://from --to memory://to"
	s.want(stores+" --dry-run", 0, "workloadentry/one created\n1 object would be copied (1 new, 0 replaced), 0 unchanged\n", "")
	s.want(stores, 0, "workloadentry/one created\n1 object copied (1 new, 0 replaced), 0 unchanged\n", "")
	got := s.store("memory://to").Get(old.Key)
	if !got.Created.Equal(born) || got.Annotations["keep"] != "me" || len(got.Annotations) != 1 {
		t.Errorf("copied object: got %+v", got)
	}
	s.want(stores, 0, "0 objects copied (0 new, 0 replaced), 1 unchanged\n", "")
	if _, err := s.store("memory://from").Patch(t.Context(), old.Key, func(c *model.Config) error {
		c.Spec.(*networkingv1alpha3.WorkloadEntry).Address = "10.0.0.2"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.want(stores, 1, "0 objects copied (0 new, 0 replaced), 0 unchanged\n",
		"error: workloadentry/one: it already exists and differs: compare them, or set --overwrite\n")
	s.want(stores+" --overwrite", 0, "workloadentry/one replaced\n1 object copied (0 new, 1 replaced), 0 unchanged\n", "")
}

func TestWrongCommandLines(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for command, text := range map[string]string{
		"apply":                          "no files: name them with -f FILE",
		"apply x.yaml":                   `apply takes no arguments, but got "x.yaml": name files with -f`,
		"get":                            "no kind is named",
		"get sirvices":                   `kind "sirvices" is unknown`,
		"get vs -o xml":                  `"xml" for "-o, --output" flag: write table, wide, yaml, json or name`,
		"get vs -l =":                    "-l =: ",
		"get vs a -A":                    "-A and names exclude each other",
		"delete":                         "nothing to do",
		"delete vs":                      "name the objects, or choose them with -l",
		"migrate --from memory://":       "name both stores",
		"get vs/a b":                     `"b" is not KIND/NAME`,
		"validate":                       "no files",
		"diff":                           "no files",
		"apply -f /no/file":              "stat /no/file: no such file",
		"validate -f /no/file":           "stat /no/file: no such file",
		"describe":                       "no kind is named",
		"get gateways.example.com":       "is unknown",
		"get vs,gateways.example.com -A": "is unknown",
	} {
		code, out, errs := s.run(strings.Fields(command)...)
		if code != 2 || out != "" || !strings.Contains(errs, text) {
			t.Errorf("outrigger %s: got exit code %d, output %q, errors %q; want 2 and %q", command, code, out, errs, text)
		}
	}
	if err := os.Mkdir(filepath.Join(s.dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.want("apply -f DIR/empty", 1, "", "outrigger: empty contains no .yaml, .yml or .json file\n")
}

// TestKindNames checks that each kind can be referred to by its kind, plural or short name. Istio's
// Gateway must be distinct from that of the Gateway API.
func TestKindNames(t *testing.T) {
	t.Parallel()
	for _, sch := range schema.All() {
		names := []string{sch.Plural + "." + sch.Group, strings.ToLower(sch.Name) + "." + sch.Group}
		if sch.Short != "" {
			names = append(names, sch.Short)
		}
		if string(sch.Kind) == sch.Name {
			names = append(names, sch.Name, sch.Plural)
		}
		for _, name := range names {
			list, err := kinds(name)
			if err != nil || len(list) != 1 || list[0].Kind != sch.Kind {
				t.Errorf("kinds(%s) = %v, %v; want %s", name, list, err, sch.Kind)
			}
		}
	}
	if list, err := kinds("all"); err != nil || len(list) != len(schema.All()) {
		t.Errorf("kinds(all) returned %d kinds, error %v", len(list), err)
	}
}
