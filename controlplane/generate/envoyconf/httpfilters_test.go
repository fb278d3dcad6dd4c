// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
)

// TestHTTPFilterOrder applies every combination of options.
func TestHTTPFilterOrder(t *testing.T) {
	t.Parallel()
	plugin := func(name string) []*hcmv3.HttpFilter { return []*hcmv3.HttpFilter{{Name: name}} }
	plugins := Plugins{
		extensionsv1alpha1.PluginPhase_AUTHN: plugin("authn"), extensionsv1alpha1.PluginPhase_AUTHZ: plugin("authz"),
		extensionsv1alpha1.PluginPhase_STATS: plugin("stats"), extensionsv1alpha1.PluginPhase_UNSPECIFIED_PHASE: plugin("late"),
	}
	for name, tc := range map[string]struct {
		filters Filters
		want    string
	}{
		"none":    {Filters{}, "grpc_stats fault cors router"},
		"browser": {Filters{GRPCWeb: true}, "grpc_web grpc_stats fault cors router"},
		"unknown": {Filters{OffersHTTP: true}, "grpc_stats fault cors set_filter_state router"},
		"all": {
			Filters{Plugins: plugins, GRPCWeb: true, OffersHTTP: true, Authentication: plugin("jwt_authn"), Authorization: plugin("rbac"), NamesRules: true},
			"header_mutation header_to_metadata authn jwt_authn authz rbac stats late grpc_web grpc_stats fault cors set_filter_state router",
		},
		"library client": {Filters{Library: LibraryClient, Plugins: plugins, GRPCWeb: true, OffersHTTP: true}, "fault router"},
		"library server": {Filters{Library: LibraryServer, Denied: &Denied{http: &hcmv3.HttpFilter{Name: "denied"}}}, "denied router"},
	} {
		hcm := &hcmv3.HttpConnectionManager{HttpFilters: plugin("from before")}
		tc.filters.Apply(hcm)
		var got []string
		for _, f := range hcm.GetHttpFilters() {
			got = append(got, strings.TrimPrefix(f.GetName(), "envoy.filters.http."))
		}
		if text := strings.Join(got, " "); text != tc.want {
			t.Errorf("%s: the filters are %s, want %s", name, text, tc.want)
		}
	}
	for _, row := range (Filters{}).table() {
		if row.reason == "" {
			t.Errorf("the place of %q has no reason", row.name)
		}
	}
}

// TestOneTableOfHTTPFilters checks that no other code of the generators sets the HTTP filters of a
// connection manager.
func TestOneTableOfHTTPFilters(t *testing.T) {
	t.Parallel()
	allowed := []string{
		filepath.Join("envoyconf", "httpfilters.go"),
		"guard.go",                            // hashes a copy
		filepath.Join("decision", "trial.go"), // leaves some of them
	}
	read := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		name, err := filepath.Rel("..", path)
		if err != nil {
			return err
		}
		if slices.Contains(allowed, name) {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		read++
		for _, at := range writesOfHTTPFilters(file) {
			t.Errorf("%s writes HTTP filters: add a row to the table in envoyconf/httpfilters.go instead", fset.Position(at))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 20 {
		t.Errorf("%d files were read", read)
	}
}

// writesOfHTTPFilters returns the positions at which a file sets HttpFilters of a message.
func writesOfHTTPFilters(file *ast.File) (out []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "HttpFilters" {
				out = append(out, n.Pos())
			}
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				ast.Inspect(left, func(l ast.Node) bool {
					if sel, ok := l.(*ast.SelectorExpr); ok && sel.Sel.Name == "HttpFilters" {
						out = append(out, n.Pos())
					}
					return true
				})
			}
		}
		return true
	})
	return out
}

// TestWritesOfHTTPFilters checks that the rule detects violations.
func TestWritesOfHTTPFilters(t *testing.T) {
	t.Parallel()
	const bad = `package p
func f() { h.HttpFilters = append(h.HttpFilters, x); h.HttpFilters[0] = x; _ = &H{HttpFilters: nil} }`
	file, err := parser.ParseFile(token.NewFileSet(), "bad.go", bad, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(writesOfHTTPFilters(file)); n != 3 {
		t.Errorf("%d writes found, want 3", n)
	}
}
