// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// metric is a metric that the code creates.
type metric struct {
	name, help string
	kind       string   // counter, gauge or histogram
	constant   []string // labels that have one value: `name`: `value`
	labels     []string
	buckets    string // upper bounds, for a histogram
	part       string // directory
}

// definitions contains the values of names: constants of the package, variables of the function,
// parameters of a closure.
type definitions map[string]ast.Expr

// readMetrics finds the metrics that the files of one package create: calls of a constructor of
// client_golang, directly or in a closure that only passes names and texts.
func readMetrics(files []source) ([]metric, error) {
	names := definitions{}
	for _, s := range files {
		for _, d := range s.file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				for _, spec := range g.Specs {
					names.define(spec.(*ast.ValueSpec).Names, spec.(*ast.ValueSpec).Values)
				}
			}
		}
	}
	var found []metric
	for _, s := range files {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			metrics, err := readFunction(f.Body, maps.Clone(names))
			if err != nil {
				return nil, fmt.Errorf("line %d of %s, %s: %w", s.line(f), s.path, f.Name.Name, err)
			}
			for _, m := range metrics {
				if m.part = filepath.Dir(s.path); m.kind == "" {
					m.kind = constKind(s.file)
				}
				found = append(found, m)
			}
		}
	}
	return found, nil
}

// define records the values of names that are defined by a single expression.
func (s definitions) define(names []*ast.Ident, values []ast.Expr) {
	for i, name := range names {
		if len(values) == len(names) {
			s[name.Name] = values[i]
		}
	}
}

func readFunction(body *ast.BlockStmt, names definitions) (found []metric, err error) {
	closures := map[string]*ast.FuncLit{}
	ast.Inspect(body, func(n ast.Node) bool {
		if err != nil {
			return false
		}
		switch n := n.(type) {
		case *ast.AssignStmt:
			if name, ok := n.Lhs[0].(*ast.Ident); ok && len(n.Lhs) == 1 && len(n.Rhs) == 1 {
				names[name.Name] = n.Rhs[0]
				if closure, ok := n.Rhs[0].(*ast.FuncLit); ok && constructor(closure) != nil {
					closures[name.Name] = closure
					return false // it is read where it is called
				}
			}
		case *ast.CallExpr:
			call, within := n, names
			if name, ok := n.Fun.(*ast.Ident); ok && closures[name.Name] != nil {
				call, within = constructor(closures[name.Name]), names.with(closures[name.Name], n.Args)
			}
			if kind(call) != "" {
				var m metric
				m, err = within.read(call)
				found = append(found, m)
			}
		}
		return err == nil
	})
	return found, err
}

// constructor returns the call of a constructor in a closure, or nil.
func constructor(closure *ast.FuncLit) (call *ast.CallExpr) {
	ast.Inspect(closure, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok && kind(c) != "" {
			call = c
		}
		return call == nil
	})
	return call
}

// with adds the parameters of a closure to the names.
func (s definitions) with(closure *ast.FuncLit, args []ast.Expr) definitions {
	inner := maps.Clone(s)
	for _, field := range closure.Type.Params.List {
		for _, name := range field.Names {
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				inner[name.Name], args = &ast.CompositeLit{Elts: args}, nil
			} else if len(args) > 0 {
				inner[name.Name], args = args[0], args[1:]
			}
		}
	}
	return inner
}

// kind returns the name of the constructor that is called, without New, or "".
func kind(call *ast.CallExpr) string {
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
		if name, ours := strings.CutPrefix(selector(sel), "prometheus.New"); ours {
			for _, of := range []string{"Counter", "Gauge", "Histogram", "Desc", "Summary", "Untyped"} {
				if strings.HasPrefix(name, of) {
					return strings.ToLower(of)
				}
			}
		}
	}
	return ""
}

// constKind returns the kind of the metrics that a collector in a file creates.
func constKind(file *ast.File) (kind string) {
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if value, ours := strings.CutPrefix(selector(sel), "prometheus."); ours && strings.HasSuffix(value, "Value") {
				kind = strings.ToLower(strings.TrimSuffix(value, "Value"))
			}
		}
		return true
	})
	return kind
}

// read reads the arguments of a constructor.
func (s definitions) read(call *ast.CallExpr) (m metric, err error) {
	if m.kind = kind(call); m.kind == "desc" {
		m.kind = "" // the values determine it
		if len(call.Args) != 4 {
			return m, fmt.Errorf("NewDesc with %d arguments", len(call.Args))
		}
		if m.name, err = s.text(call.Args[0]); err != nil {
			return m, err
		}
		if m.help, err = s.text(call.Args[1]); err != nil {
			return m, err
		}
		m.labels, err = s.list(call.Args[2])
		return m, err
	}
	opts, ok := s.resolve(call.Args[0]).(*ast.CompositeLit)
	if !ok {
		return m, fmt.Errorf("the options of a %s are not a literal", m.kind)
	}
	for _, element := range opts.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok {
			return m, fmt.Errorf("an option of a %s has no name", m.kind)
		}
		switch name := field.Key.(*ast.Ident).Name; name {
		case "Name":
			m.name, err = s.text(field.Value)
		case "Help":
			m.help, err = s.text(field.Value)
		case "ConstLabels":
			m.constant, err = s.pairs(field.Value)
		case "Buckets":
			m.buckets, err = s.ends(field.Value)
		default:
			err = fmt.Errorf("the option %s is unknown", name)
		}
		if err != nil {
			return m, err
		}
	}
	if m.kind == "histogram" && m.buckets == "" {
		m.buckets = joinEnds(prometheus.DefBuckets)
	}
	if sel := call.Fun.(*ast.SelectorExpr); strings.HasSuffix(sel.Sel.Name, "Vec") {
		m.labels, err = s.list(call.Args[1])
	}
	return m, err
}

// resolve returns the expression that a name is defined by.
func (s definitions) resolve(e ast.Expr) ast.Expr {
	for range 10 { // a bound for a name that is defined by itself
		name, ok := e.(*ast.Ident)
		if !ok || s[name.Name] == nil {
			return e
		}
		e = s[name.Name]
	}
	return e
}

func (s definitions) text(e ast.Expr) (string, error) {
	switch e := s.resolve(e).(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			return strconv.Unquote(e.Value)
		}
	case *ast.BinaryExpr:
		left, err := s.text(e.X)
		if err != nil {
			return "", err
		}
		right, err := s.text(e.Y)
		return left + right, err
	}
	return "", fmt.Errorf("a name or a text of a metric is not a string but %T", e)
}

// list returns a slice of texts, or nil.
func (s definitions) list(e ast.Expr) (list []string, err error) {
	e = s.resolve(e)
	if name, ok := e.(*ast.Ident); ok && name.Name == "nil" {
		return nil, nil
	}
	literal, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil, fmt.Errorf("labels are not a literal but %T", e)
	}
	for _, element := range literal.Elts {
		text, err := s.text(element)
		if err != nil {
			return nil, err
		}
		list = append(list, text)
	}
	return list, nil
}

// pairs returns the labels that have one value.
func (s definitions) pairs(e ast.Expr) (list []string, err error) {
	literal, ok := s.resolve(e).(*ast.CompositeLit)
	if !ok {
		return nil, fmt.Errorf("constant labels are not a literal but %T", e)
	}
	for _, element := range literal.Elts {
		pair := element.(*ast.KeyValueExpr)
		label, err := s.text(pair.Key)
		if err != nil {
			return nil, err
		}
		value, err := s.text(pair.Value)
		if err != nil {
			return nil, err
		}
		list = append(list, "`"+label+"`: `"+value+"`")
	}
	slices.Sort(list)
	return list, nil
}

// ends returns the upper bounds of buckets.
func (s definitions) ends(e ast.Expr) (string, error) {
	var args []ast.Expr
	call, isCall := s.resolve(e).(*ast.CallExpr)
	switch e := s.resolve(e).(type) {
	case *ast.CompositeLit:
		args = e.Elts
	case *ast.CallExpr:
		args = e.Args
	default:
		return "", fmt.Errorf("buckets are not a literal but %T", e)
	}
	var numbers []float64
	for _, arg := range args {
		literal, ok := s.resolve(arg).(*ast.BasicLit)
		if !ok {
			return "", fmt.Errorf("an end of a bucket is not a number but %T", arg)
		}
		n, err := strconv.ParseFloat(literal.Value, 64)
		if err != nil {
			return "", err
		}
		numbers = append(numbers, n)
	}
	if !isCall {
		return joinEnds(numbers), nil
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || selector(sel) != "prometheus.ExponentialBuckets" || len(numbers) != 3 {
		return "", errors.New("buckets are made by something unknown here")
	}
	return joinEnds(prometheus.ExponentialBuckets(numbers[0], numbers[1], int(numbers[2]))), nil
}

func joinEnds(ends []float64) string {
	var list []string
	for _, end := range ends {
		list = append(list, strconv.FormatFloat(end, 'g', -1, 64))
	}
	return strings.Join(list, ", ")
}

// parsed is a file of a package, from its text.
func parsed(t *testing.T, text string) source {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "a/a.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	return source{"a/a.go", []byte(text), set, file}
}

// TestReadMetrics checks the supported forms, and that other forms are reported.
func TestReadMetrics(t *testing.T) {
	t.Parallel()
	const head = "package a\nconst n = 3\nfunc f() {\n"
	for code, want := range map[string]string{
		`prometheus.NewGauge(prometheus.GaugeOpts{Name: "a_b", Help: "A b."})`: "gauge a_b [] [] A b. ",
		`c := func(name, help string, l ...string) any {return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, l)}
		 c("a", "A"+" b.", "x", "y")`: "counter a [] [x y] A b. ",
		`l := prometheus.Labels{"k": "v"}
		 prometheus.NewHistogram(prometheus.HistogramOpts{Name: "a", Help: "A.", ConstLabels: l, Buckets: prometheus.ExponentialBuckets(1, 2, n)})`: "histogram a [`k`: `v`] [] A. 1, 2, 4",
		`d := prometheus.NewDesc("a", "A.", []string{"x"}, nil); prometheus.MustNewConstMetric(d, prometheus.GaugeValue, 1)`: "gauge a [] [x] A. ",
		`prometheus.NewGauge(prometheus.GaugeOpts{Name: name(), Help: "A."})`:                                                "is not a string",
		`prometheus.NewGauge(opts)`:                                 "are not a literal",
		`prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "a"})`: "Namespace is unknown",
		`prometheus.NewHistogram(prometheus.HistogramOpts{Name: "a", Help: "A.", Buckets: prometheus.LinearBuckets(1, 2, 3)})`: "something unknown",
	} {
		found, err := readMetrics([]source{parsed(t, head+code+"\n}")})
		got := fmt.Sprint(err)
		if err == nil && len(found) == 1 {
			m := found[0]
			got = fmt.Sprint(m.kind, " ", m.name, " ", m.constant, " ", m.labels, " ", m.help, " ", m.buckets)
		}
		if err == nil && got != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%s\n  gives %q, want %q", code, got, want)
		}
	}
}
