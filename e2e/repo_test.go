// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rules of the repository, as written in ARCHITECTURE.md and
// CONTRIBUTING.md:
//
//   - who may import whom (TestImports);
//   - programs contain only main, flags, environment and wiring (TestPrograms);
//   - what the agent's binary may link, and its size (TestAgentIsSmall);
//   - the environment is read in cmd/*/env.go only; no init(), no state in
//     package variables, no end of the process outside main (TestSource, repo_source_test.go);
//   - servers have limits (TestServers, there too);
//   - one table orders the HTTP filters (TestFilterTable, there too);
//   - the head, the length and the functions of a file (TestFiles, there too);
//   - each package has its doc.go, and ARCHITECTURE.md names it (TestPackages);
//   - docs/reference/metrics.md lists every metric (TestMetrics);
//   - links between documents are valid, and they contain no open tasks (TestDocuments); their
//     lines have a width (TestDocumentWidth, docs_links_test.go);
//   - comments, messages and documents are plain English (TestProse, prose_test.go);
//   - make lint runs the tools in CONTRIBUTING.md, in every module (TestLint);
//   - the files at the top of the tree (TestTopLevel).

const (
	module   = "github.com/outrigger-mesh/outrigger"
	root     = ".."
	maxAgent = 20_000_000 // bytes
)

// pkg is the output of go list about a package.
type pkg struct {
	ImportPath   string
	Name         string
	Dir          string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
	Deps         []string
	TestImports  []string
	XTestImports []string
}

// rel returns the path of the package below the module, or "" for packages of other modules.
func rel(importPath string) string {
	if importPath == module {
		return "."
	}
	path, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return path
}

// packages lists the packages of the module.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Name,Dir,GoFiles,TestGoFiles,XTestGoFiles,Imports,Deps,TestImports,XTestImports", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("only %d packages were found", len(all))
	}
	return all
}

// below reports whether a path is one of the directories or below one.
func below(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") })
}

var (
	agentFolders = []string{"agent", "bootstrap", "envoy", "xdsproxy", "sds", "status", "certs"}
	sharedLeaves = []string{"certs", "bootstrap/node", "bootstrap/meshconfig", "xdsproxy/nds", "xdsproxy/wire"}
)

// importProblem returns why one package of the module must not import another, or "".
func importProblem(from, to string) string {
	switch {
	case below(from, agentFolders...) && below(to, "controlplane"):
		return "an agent folder must not import the control plane"
	case below(from, "controlplane") && below(to, agentFolders...) && !slices.Contains(sharedLeaves, to):
		return "the control plane may import of the agent folders only " + strings.Join(sharedLeaves, ", ")
	case below(from, "cmd/outrigger-agent") && below(to, "controlplane"):
		return "the agent must not import the control plane"
	case below(from, "internal") && !below(to, "internal"):
		return "a package that several programs share must not import their packages"
	case below(to, "tool") && !below(from, "tool", "cmd/outrigger"):
		return "only cmd/outrigger imports the commands of the tool"
	case below(to, "mesh") && !below(from, "mesh", "tool", "cmd/outrigger"):
		return "only the tool imports the mesh of one machine"
	case below(from, "mesh") && below(to, "controlplane"):
		return "a mesh runs the programs, it does not import them"
	case below(to, "cni") && !below(from, "cmd/outrigger-cni"):
		return "only cmd/outrigger-cni imports the CNI plugin"
	case below(from, "cni") && below(to, agentFolders...) && to != "envoy/capture":
		return "the CNI plugin may import of the agent folders only envoy/capture"
	case below(from, "cni", "cmd/outrigger-cni") && below(to, "controlplane"):
		return "the CNI plugin must not import the control plane: runtimes start it for each pod"
	case below(to, "cmd"):
		return "nobody imports cmd"
	case to == "e2e" || below(to, "examples"):
		return "nobody imports e2e or examples"
	}
	return ""
}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		from := rel(p.ImportPath)
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			inTest := !slices.Contains(p.Imports, imported)
			switch to := rel(imported); {
			case to == "" || imported == p.ImportPath:
			case inTest && below(from, "controlplane") && below(to, agentFolders...):
				// A test of the control plane may use the real client.
			case importProblem(from, to) != "":
				t.Errorf("%s imports %s: %s", from, to, importProblem(from, to))
			}
		}
		for _, imported := range p.Imports {
			if (imported == "testing" || strings.HasPrefix(imported, "testing/")) && !strings.HasSuffix(from, "test") {
				t.Errorf("%s imports testing outside a test: put fakes into a package whose name ends with test", from)
			}
			if strings.HasPrefix(imported, "k8s.io/client-go") && !below(from, "controlplane/kube") &&
				(imported != "k8s.io/client-go/util/workqueue" || !below(from, "controlplane")) {
				t.Errorf("%s imports %s: only controlplane/kube may, and the control plane its work queue", from, imported)
			}
		}
	}
}

// TestImportRules tests the rules themselves.
func TestImportRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		allowed  bool
	}{
		{"envoy", "controlplane/model", false},
		{"sds/caclient", "certs", true},
		{"controlplane/ca", "certs", true},
		{"controlplane/discovery", "bootstrap/node", true},
		{"controlplane/discovery", "bootstrap", false},
		{"controlplane/discovery", "sds", false},
		{"cmd/outrigger-agent", "controlplane/model", false},
		{"cmd/outrigger-control", "controlplane/server", true},
		{"controlplane/server", "cmd/outrigger-control", false},
		{"cmd/outrigger", "mesh", true},
		{"cmd/outrigger", "tool/inspect", true},
		{"cmd/outrigger-agent", "mesh", false},
		{"controlplane/server", "tool/objects", false},
		{"mesh", "controlplane/config", false},
		{"envoy", "cmd/outrigger-agent", false},
		{"agent", "controlplane/model", false},
		{"controlplane/ca", "agent/logging", false},
		{"cmd/outrigger-agent", "internal/footprint", true},
		{"certs", "e2e", false},
		{"status", "internal/connlimit", true},
		{"controlplane/ca", "internal/ratelimit", true},
		{"internal/connlimit", "internal/ratelimit", true},
		{"internal/connlimit", "certs", false},
		{"xdsproxy", "internal/localonly", true},
		{"cmd/outrigger-cni", "cni", true},
		{"cni", "envoy/capture", true},
		{"cni", "envoy", false},
		{"cni", "controlplane/kube", false},
		{"agent", "cni", false},
	} {
		if allowed := importProblem(c.from, c.to) == ""; allowed != c.allowed {
			t.Errorf("%s imports %s: allowed is %v, want %v", c.from, c.to, allowed, c.allowed)
		}
	}
}

// programFiles are the files that a program may consist of, and the lines that
// they may have together: main, flags, environment, and the commands that call a
// package. Everything else belongs in a package that tests can import.
var programFiles = map[string]struct {
	names string
	lines int
}{
	"cmd/outrigger-agent":   {"doc.go main.go flags.go env.go capture.go proxy.go request.go version.go wait.go", 960},
	"cmd/outrigger-cni":     {"doc.go main.go flags.go env.go", 300},
	"cmd/outrigger":         {"doc.go main.go flags.go env.go", 300},
	"cmd/outrigger-control": {"doc.go main.go flags.go env.go env_cluster.go env_identity.go env_ports.go", 850},
}

// TestPrograms limits the files and lines of a program.
func TestPrograms(t *testing.T) {
	t.Parallel()
	lines := map[string]int{}
	for _, s := range sources(t) {
		program, ruled := programFiles[filepath.Dir(s.path)]
		if !ruled || s.isTest() {
			continue
		}
		lines[filepath.Dir(s.path)] += bytes.Count(s.text, []byte("\n"))
		if !slices.Contains(strings.Fields(program.names), filepath.Base(s.path)) {
			t.Errorf("%s: a program contains only %s: move the code into a package", s.path, program.names)
		}
	}
	for dir, program := range programFiles {
		if n := lines[dir]; n == 0 || n > program.lines {
			t.Errorf("%s has %d lines, want 1 to %d: move code into a package", dir, n, program.lines)
		}
	}
}

// TestAgentIsSmall checks the size and the dependencies of the agent and of the CNI plugin, which
// runtimes start for each pod.
func TestAgentIsSmall(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if p.ImportPath != module+"/cmd/outrigger-agent" && p.ImportPath != module+"/cmd/outrigger-cni" {
			continue
		}
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, "k8s.io/") || below(rel(dep), "controlplane") || dep == "testing" {
				t.Errorf("the binary of %s contains %s", rel(p.ImportPath), dep)
			}
		}
	}
	binary := filepath.Join(root, "bin", "outrigger-agent")
	if _, err := os.Stat(binary); err != nil {
		binary = filepath.Join(t.TempDir(), "outrigger-agent")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/outrigger-agent")
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxAgent {
		t.Errorf("%s has %.1f MB, more than %.1f", binary, float64(info.Size())/1e6, maxAgent/1e6)
	}
}

func TestPackages(t *testing.T) {
	t.Parallel()
	architecture, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Error(err)
	}
	for _, p := range packages(t) {
		path := rel(p.ImportPath)
		doc, err := os.ReadFile(filepath.Join(p.Dir, "doc.go"))
		if err != nil {
			t.Errorf("%s has no doc.go: say what it owns, who calls it, what it never does, which goroutines it runs", path)
		} else if want := "// Package " + p.Name; p.Name != "main" && !bytes.Contains(doc, []byte(want)) {
			t.Errorf("%s/doc.go does not begin its text with %q", path, want)
		}
		for _, banned := range []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "base"} {
			if p.Name == banned {
				t.Errorf("%s: a package is named after what it is about", path)
			}
		}
		if !mentions(architecture, path) {
			t.Errorf("ARCHITECTURE.md does not mention %s", path)
		}
	}
}

// mentions reports whether a document names a path of the tree, in full or as its end in a picture
// of the tree.
func mentions(doc []byte, path string) bool {
	word := regexp.MustCompile(`(^|[^\w-])` + regexp.QuoteMeta(path) + `($|[^\w-])`)
	if word.Match(doc) {
		return true
	}
	parent, name := filepath.Split(path)
	return parent != "" && regexp.MustCompile(`(?m)^\s+`+regexp.QuoteMeta(name)+`/`).Match(doc) && mentions(doc, strings.TrimSuffix(parent, "/"))
}

// metricField finds the name of a metric in its definition.
var metricField = regexp.MustCompile(`(?s)prometheus\.(?:Counter|Gauge|Histogram|Summary)Opts\{[^}]*?Name:\s*"([^"]+)"|prometheus\.NewDesc\(\s*"([^"]+)"`)

func TestMetrics(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile(filepath.Join(root, "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		for _, m := range metricField.FindAllSubmatch(s.text, -1) {
			if name := string(m[1]) + string(m[2]); !bytes.Contains(list, []byte("`"+name+"`")) {
				t.Errorf("%s: docs/reference/metrics.md does not list `%s`", s.path, name)
			}
		}
	}
}

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeBlock    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	leftovers    = regexp.MustCompile(`\b(TODO|FIXME|XXX|TBD|lorem ipsum)\b`)
	scheme       = regexp.MustCompile(`^[a-z]+:`)
)

func TestDocuments(t *testing.T) {
	t.Parallel()
	files := walk(t, ".md")
	for _, must := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/compatibility.md"} {
		if !slices.Contains(files, must) {
			t.Errorf("%s is missing", must)
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if word := leftovers.Find(text); word != nil {
			t.Errorf("%s: %s is left", file, word)
		}
		for _, m := range markdownLink.FindAllSubmatch(codeBlock.ReplaceAll(text, nil), -1) {
			if link := string(m[1]); !scheme.MatchString(link) {
				if problem := linkProblem(t, file, link); problem != "" {
					t.Errorf("%s: the link to %s: %s", file, link, problem)
				}
			}
		}
	}
}

// topLevel is everything that is allowed at the top of the tree.
var topLevel = strings.Fields(`
	.ci .git .gitignore agent ARCHITECTURE.md CONTRIBUTING.md LICENSE Makefile README.md THIRD_PARTY_NOTICES bin bootstrap certs
	changes charts cmd cni controlplane docs e2e envoy examples go.mod go.sum internal mesh mkdocs.yml packaging requirements-docs.txt requirements-envoy.txt scripts sds status tool xdsproxy`)

func TestTopLevel(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(topLevel, e.Name()) {
			t.Errorf("%s is at the top of the tree: find its place, or change this list and the picture in ARCHITECTURE.md", e.Name())
		}
	}
	for _, must := range []string{"LICENSE", ".ci/run"} {
		if info, err := os.Stat(filepath.Join(root, must)); err != nil {
			t.Error(err)
		} else if must == ".ci/run" && info.Mode()&0o111 == 0 {
			t.Error(fmt.Errorf("%s is not executable", must))
		}
	}
}

var lintRow = regexp.MustCompile(`(?m)^\| ` + "`make lint`" + ` +\| (.*?); changes nothing`)

// TestLint compares the commands of make lint with its description, and with
// the modules of the tree.
func TestLint(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "make", "-n", "lint")
	cmd.Dir = root
	commands, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	contributing, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := lintRow.FindSubmatch(contributing)
	if row == nil {
		t.Fatal("CONTRIBUTING.md does not describe make lint")
	}
	for _, tool := range strings.Split(string(row[1]), ", ") {
		if tool = strings.Trim(tool, "`"); !bytes.Contains(commands, []byte(tool)) {
			t.Errorf("make lint does not run %s", tool)
		}
	}
	tidy := regexp.MustCompile(`for dir in (.*?); do \(cd \$dir; go mod tidy -diff\)`).FindSubmatch(commands)
	if tidy == nil {
		t.Fatal("make lint does not run go mod tidy -diff in each module")
	}
	checks := regexp.MustCompile(`for dir in (.*?); do \(cd \$dir; go vet \./\.\.\.; \$staticcheck \./\.\.\.; \$errcheck \./\.\.\.\)`).FindSubmatch(commands)
	if checks == nil {
		t.Fatal("make lint does not run go vet, staticcheck and errcheck in the other modules")
	}
	var modules, others []string
	for _, file := range walk(t, "go.mod") {
		dir := filepath.Dir(file)
		modules = append(modules, dir)
		source, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		if dir != "." && len(source) > 0 { // the others pin tools
			others = append(others, dir)
		}
	}
	for _, c := range []struct {
		does      string
		got, want []string
	}{
		{"tidies", strings.Fields(string(tidy[1])), modules},
		{"checks, besides the root,", strings.Fields(string(checks[1])), others},
	} {
		slices.Sort(c.got)
		slices.Sort(c.want)
		if !slices.Equal(c.got, c.want) {
			t.Errorf("make lint %s the modules %q, and there are %q", c.does, c.got, c.want)
		}
	}
}
