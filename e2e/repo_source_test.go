// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	maxFile = 500 // lines
	maxFunc = 100 // lines
)

// source is one parsed file of the module.
type source struct {
	path string // below the root
	text []byte
	set  *token.FileSet
	file *ast.File
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) line(n ast.Node) int { return s.set.Position(n.Pos()).Line }

// sources parses all Go files below the root.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	for _, path := range walk(t, ".go") {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, source{path, text, set, file})
	}
	return all
}

// walk lists the files below the root with the given end of their names; it
// leaves out hidden directories, bin and testdata.
func walk(t *testing.T, suffix string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata") {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(name, suffix) {
			path, err = filepath.Rel(root, path)
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// allowedVariables are package variables that are written, and why.
var allowedVariables = map[string]string{
	"cmd/outrigger/main.go version":         "set by the linker",
	"cmd/outrigger-agent/main.go version":   "set by the linker",
	"cmd/outrigger-cni/main.go version":     "set by the linker",
	"cmd/outrigger-control/main.go version": "set by the linker",
}

// bareServers are the files outside of internal/connlimit that create servers without its limits,
// and why.
var bareServers = map[string]string{
	"xdsproxy/debug.go": "serves gRPC and HTTP on one port, for this machine only, with limits of its own",
}

// serverProblem returns the problem of an expression that creates a server, or "".
func serverProblem(n ast.Node) string {
	switch n := n.(type) {
	case *ast.CompositeLit:
		if sel, ok := n.Type.(*ast.SelectorExpr); ok && selector(sel) == "http.Server" {
			return "http.Server"
		}
	case *ast.SelectorExpr:
		switch name := selector(n); name {
		case "grpc.NewServer", "http.ListenAndServe", "http.ListenAndServeTLS", "http.Serve", "http.ServeTLS":
			return name
		}
	}
	return ""
}

// TestServers finds servers without limits.
func TestServers(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.isTest() || below(s.path, "examples", "e2e", "internal/connlimit") || strings.HasSuffix(filepath.Dir(s.path), "test") {
			continue
		}
		found := false
		ast.Inspect(s.file, func(n ast.Node) bool {
			if problem := serverProblem(n); problem != "" {
				found = true
				if bareServers[s.path] == "" {
					t.Errorf("%s:%d: %s: make the server with internal/connlimit, which has limits", s.path, s.line(n), problem)
				}
			}
			return true
		})
		if !found && bareServers[s.path] != "" {
			t.Errorf("%s makes no server any more: take it out of the list", s.path)
		}
	}
}

// filterSetters are the files that set the HTTP filters of a connection manager, and why.
var filterSetters = map[string]string{
	"controlplane/generate/envoyconf/httpfilters.go": "the table",
	"controlplane/generate/guard.go":                 "removes filters that change nothing, to compare",
	"controlplane/generate/decision/trial.go":        "keeps the filters that decide, to ask an Envoy",
	"controlplane/xds/static.go":                     "embeds the configurations of filters that are there",
	"controlplane/patch/listener.go":                 "applies the filters of EnvoyFilters, which the table cannot know",
}

// TestFilterTable finds code that adds HTTP filters past the table.
func TestFilterTable(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() || !below(s.path, "controlplane") {
			continue
		}
		sets := func(n ast.Expr) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				return n.Sel.Name == "HttpFilters"
			case *ast.Ident: // a key of a literal
				return n.Name == "HttpFilters"
			}
			return false
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				found[s.path] = found[s.path] || slices.ContainsFunc(n.Lhs, sets)
			case *ast.KeyValueExpr:
				found[s.path] = found[s.path] || sets(n.Key)
			}
			return true
		})
		if found[s.path] && filterSetters[s.path] == "" {
			t.Errorf("%s sets HttpFilters: add a row to the table in controlplane/generate/envoyconf/httpfilters.go", s.path)
		}
	}
	for file := range filterSetters {
		if !found[file] {
			t.Errorf("%s sets no HttpFilters any more: take it out of the list", file)
		}
	}
}

var envFile = regexp.MustCompile(`^cmd/[^/]+/env\.go$`)

// TestSource finds forbidden calls and declarations.
func TestSource(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		ours := !below(s.path, "examples", "e2e")
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch name := selector(sel); name {
			case "os.Getenv", "os.LookupEnv", "os.Environ", "os.ExpandEnv":
				if !envFile.MatchString(s.path) && ours {
					t.Errorf("%s:%d: %s: the environment is read in cmd/*/env.go only", s.path, s.line(n), name)
				}
			case "os.Exit", "log.Fatal", "log.Fatalf", "log.Fatalln", "log.Panic", "log.Panicf":
				if s.file.Name.Name != "main" {
					t.Errorf("%s:%d: %s: only main ends the process", s.path, s.line(n), name)
				}
			case "context.TODO", "context.Background":
				if s.file.Name.Name != "main" {
					t.Errorf("%s:%d: %s: a context comes from main", s.path, s.line(n), name)
				}
			case "time.Tick":
				t.Errorf("%s:%d: %s: use a ticker that is stopped", s.path, s.line(n), name)
			}
			return true
		})
		for _, d := range s.file.Decls {
			checkDeclaration(t, s, d)
		}
	}
}

func selector(sel *ast.SelectorExpr) string {
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name + "." + sel.Sel.Name
	}
	return ""
}

// checkDeclaration finds init functions and package variables that a
// function of the same file writes to.
func checkDeclaration(t *testing.T, s source, d ast.Decl) {
	t.Helper()
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.Name == "init" {
			t.Errorf("%s:%d: an init function: construct it in New", s.path, s.line(d))
		}
	case *ast.GenDecl:
		if d.Tok != token.VAR {
			return
		}
		for _, spec := range d.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if where, ok := written(s, name); ok && allowedVariables[s.path+" "+name.Name] == "" {
					t.Errorf("%s:%d: the package variable %s is written on line %d: keep state in a struct", s.path, s.line(name), name.Name, where)
				}
				if stateful(spec.(*ast.ValueSpec)) && allowedVariables[s.path+" "+name.Name] == "" {
					t.Errorf("%s:%d: the package variable %s holds state: keep it in a struct", s.path, s.line(name), name.Name)
				}
			}
		}
	}
}

// written finds an assignment to a package variable in its own file.
func written(s source, name *ast.Ident) (line int, ok bool) {
	is := func(e ast.Expr) bool {
		if x, isIndex := e.(*ast.IndexExpr); isIndex {
			e = x.X
		}
		id, isIdent := e.(*ast.Ident)
		return isIdent && id.Obj != nil && id.Obj == name.Obj
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if slices.ContainsFunc(n.Lhs, is) {
				line, ok = s.line(n), true
			}
		case *ast.IncDecStmt:
			if is(n.X) {
				line, ok = s.line(n), true
			}
		}
		return true
	})
	return line, ok
}

// stateful reports whether the type of a variable is made to be changed.
func stateful(v *ast.ValueSpec) bool {
	sel, ok := v.Type.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	name := selector(sel)
	return strings.HasPrefix(name, "sync.") || strings.HasPrefix(name, "atomic.")
}

const head = "// SPDX-License-Identifier: Apache-2.0\n// Copyright The Outrigger Authors\n\n"

func TestFiles(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if !bytes.HasPrefix(s.text, []byte(head)) && !ast.IsGenerated(s.file) {
			t.Errorf("%s does not begin with the two lines of the licence and an empty line", s.path)
		}
		if ast.IsGenerated(s.file) {
			continue
		}
		if n := bytes.Count(s.text, []byte("\n")); n > maxFile {
			t.Errorf("%s has %d lines, more than %d: split it", s.path, n, maxFile)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := s.set.Position(f.End()).Line - s.line(f) + 1; n > maxFunc {
				t.Errorf("%s:%d: %s has %d lines, more than %d: split it", s.path, s.line(f), f.Name.Name, n, maxFunc)
			}
		}
	}
}

// fixedAddress is a loopback address with a port that a test chose.
var fixedAddress = regexp.MustCompile(`(^|[^0-9.])(127\.[0-9]+\.[0-9]+\.[0-9]+|localhost|\[::1\]):[1-9][0-9]*`)

// TestFixedPorts requires that tests with fixed ports run in their own network namespace, where the
// ports are free.
func TestFixedPorts(t *testing.T) {
	t.Parallel()
	fixed, own := map[string]string{}, map[string]bool{}
	for _, s := range sources(t) {
		dir := filepath.Dir(s.path)
		if !s.isTest() || below(s.path, "e2e/kube") {
			continue
		}
		own[dir] = own[dir] || bytes.Contains(s.text, []byte("ownnet.Tests(m)"))
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Listen", "ListenPacket", "ListenTCP", "ListenUDP", "Dial", "DialTimeout", "DialContext"}, sel.Sel.Name) {
				return true
			}
			for _, argument := range call.Args {
				if text, ok := argument.(*ast.BasicLit); ok && text.Kind == token.STRING && fixedAddress.MatchString(strings.Trim(text.Value, "\"`")) {
					fixed[dir] = fmt.Sprintf("%s:%d: %s", s.path, s.line(n), text.Value)
				}
			}
			return true
		})
	}
	for dir, where := range fixed {
		if !own[dir] {
			t.Errorf("%s: another test or program may have this port: listen on port 0, or have TestMain call ownnet.Tests", where)
		}
	}
}

// usedByTestsOnly lists the exceptions, with the reason.
var usedByTestsOnly = map[string]string{
	"WriteDoc": "make generate runs it as a test",
}

// TestNothingForTests finds exported types and functions of production code that only tests use.
// They belong in test files or in a package whose name ends in "test".
func TestNothingForTests(t *testing.T) {
	t.Parallel()
	forTests := func(s source) bool {
		folder := filepath.Base(filepath.Dir(s.path))
		return s.isTest() || strings.HasSuffix(folder, "test") || strings.HasPrefix(s.path, "e2e/")
	}
	uses := map[string]int{}
	declared := map[string]string{} // place to name
	for _, s := range sources(t) {
		if forTests(s) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				uses[id.Name]++
			}
			return true
		})
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.IsExported() {
					declared[fmt.Sprintf("%s:%d", s.path, s.line(d))] = d.Name.Name
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok && ts.Name.IsExported() {
						declared[fmt.Sprintf("%s:%d", s.path, s.line(ts))] = ts.Name.Name
					}
				}
			}
		}
	}
	for place, name := range declared {
		if uses[name] < 2 && usedByTestsOnly[name] == "" {
			t.Errorf("%s: only tests use %s: move it to their files, or to a package whose name ends in test", place, name)
		}
	}
}
