// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package expression

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/parser"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
)

// maxDepth is how deep expressions of an Envoy nest.
const maxDepth = 32

// Check returns an error if an Envoy would refuse the expression. Its text completes the sentence
// "the expression is …".
func Check(text string) error {
	tree, err := parse(text)
	if err != nil {
		return err
	}
	return callable(tree.Expr(), tree)
}

// Format returns the command of an access log format that writes the value of an expression. The
// conversion of the whole value to a string is left out: Envoy does not have it, and formats write
// any value.
func Format(text string) (string, error) {
	text = strings.TrimSpace(text)
	tree, err := parse(text)
	if err != nil {
		return "", err
	}
	root := tree.Expr()
	if root.Kind() == ast.CallKind && root.AsCall().FunctionName() == "string" && len(root.AsCall().Args()) == 1 {
		text = strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(text, "string")), ")")
		if text = strings.TrimSpace(strings.TrimPrefix(text, "(")); Check(text) != nil {
			return "", fmt.Errorf("a call of string that cannot be read: write only its argument")
		}
		root = root.AsCall().Args()[0]
	}
	if err := callable(root, tree); err != nil {
		return "", err
	}
	if endsCommand.MatchString(text) || strings.ContainsAny(text, "\r\n\x00") {
		return "", errors.New("not expressible in a format of Envoy: write it without line breaks, and with a space behind each closing bracket")
	}
	return "%CEL(" + text + ")%", nil
}

// Bounded reports whether a valid expression has few values whatever clients send: it reads only the
// proxy itself, identities, protocols, and codes of the response.
func Bounded(text string) bool {
	tree, err := parse(text)
	if err != nil {
		return false
	}
	bounded := map[string]bool{
		"request.protocol": true, "response.code": true, "response.flags": true, "response.grpc_status": true,
		"connection.mtls": true, "connection.tls_version": true,
		"connection.uri_san_peer_certificate": true, "connection.uri_san_local_certificate": true,
	}
	for _, e := range ast.MatchDescendants(ast.NavigateAST(tree), ast.KindMatcher(ast.IdentKind)) {
		if name := e.AsIdent(); name == "xds" || name == "re" {
			continue
		}
		parent, ok := e.Parent()
		if !ok || parent.Kind() != ast.SelectKind || !bounded[e.AsIdent()+"."+parent.AsSelect().FieldName()] {
			return false
		}
	}
	return true
}

// endsCommand matches what ends a command in a format: a bracket, perhaps with a length.
var endsCommand = regexp.MustCompile(`\)(:[0-9]*)?%`)

func parse(text string) (*ast.AST, error) {
	p, err := parser.NewParser(parser.Macros(parser.HasMacro), parser.PopulateMacroCalls(true), parser.MaxRecursionDepth(maxDepth))
	if err != nil {
		return nil, fmt.Errorf("not readable: %w", err)
	}
	tree, errs := p.Parse(common.NewTextSource(text))
	if len(errs.GetErrors()) > 0 {
		e := errs.GetErrors()[0]
		message, _, _ := strings.Cut(strings.TrimPrefix(e.Message, "Syntax error: "), " expecting ")
		return nil, fmt.Errorf("not a CEL expression: at column %d, %s", e.Location.Column()+1, message)
	}
	return tree, nil
}

// form is how a function may be called: with 1 shifted by a number of arguments, if that many are
// possible, as a function and as a method.
type form struct{ function, method uint }

// forms returns those of the functions that a stock Envoy has, besides operators.
func forms() map[string]form {
	out := map[string]form{"size": {function: 1 << 1, method: 1 << 0}}
	for name, f := range map[string]form{
		"contains startsWith endsWith matches":                        {function: 1 << 2, method: 1 << 1},
		"int uint double bool bytes dyn type duration timestamp":      {function: 1 << 1},
		"getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear": {method: 1<<0 | 1<<1},
		"getHours getMilliseconds getMinutes getMonth getSeconds":     {method: 1<<0 | 1<<1},
		"re.extract":             {method: 1 << 3},
		"re.capture re.captureN": {method: 1 << 2},
	} {
		for one := range strings.FieldsSeq(name) {
			out[one] = f
		}
	}
	return out
}

// callable returns an error if an expression nests too deep, or calls a function as a stock Envoy
// cannot.
func callable(root ast.Expr, tree *ast.AST) error {
	known := forms()
	for _, e := range ast.MatchDescendants(ast.NavigateExpr(tree, root), func(ast.NavigableExpr) bool { return true }) {
		if e.Depth() >= maxDepth {
			return fmt.Errorf("nested deeper than the %d levels that Envoy reads: split it, or use && and ||", maxDepth)
		}
		if e.Kind() == ast.StructKind {
			return fmt.Errorf("a message %s, which Envoy cannot make: compare its fields", field.Quote(e.AsStruct().TypeName()))
		}
		if e.Kind() != ast.CallKind || strings.ContainsAny(e.AsCall().FunctionName(), "@!-=<>&|+*/%?[") { // operators have such names
			continue
		}
		if err := called(e.AsCall(), known); err != nil {
			return err
		}
	}
	return nil
}

// called returns an error if an Envoy has no such function.
func called(call ast.CallExpr, known map[string]form) error {
	name, args := call.FunctionName(), call.Args()
	f, ok := known[name]
	if call.IsMemberFunction() && call.Target().Kind() == ast.IdentKind && call.Target().AsIdent() == "re" {
		if of, has := known["re."+name]; has {
			f, ok = of, true
		}
	}
	switch {
	case name == "string":
		return errors.New("a call of string, which is not a function of Envoy: compare or show the value itself")
	case !ok:
		return fmt.Errorf("a call of %s, which is not a function of Envoy: use one of its functions, such as contains, startsWith or matches", name)
	case call.IsMemberFunction() && f.method&(1<<len(args)) == 0, !call.IsMemberFunction() && f.function&(1<<len(args)) == 0:
		return fmt.Errorf("a call of %s in a form or with a number of arguments that Envoy does not have: write it as in request.path.startsWith('/a') or size(request.path)", name)
	case name != "matches":
		return nil
	}
	if last := args[len(args)-1]; last.Kind() == ast.LiteralKind {
		if pattern, ok := last.AsLiteral().Value().(string); ok {
			return checkPattern(pattern)
		}
	}
	return nil
}
