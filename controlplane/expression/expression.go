// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package expression

import (
	"errors"
	"fmt"
	"strings"

	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/parser"
)

// Check returns an error if an Envoy would refuse the expression. Its text completes the sentence
// "the expression is …".
func Check(text string) error {
	_, err := Format(text)
	return err
}

// Format returns the command of an access log format that writes the value of an expression. The
// conversion of the whole value to a string is left out: Envoy does not have it, and formats write
// any value.
func Format(text string) (string, error) {
	tree, err := parse(text)
	if err != nil {
		return "", err
	}
	root := tree.Expr()
	if root.Kind() == ast.CallKind && root.AsCall().FunctionName() == "string" && len(root.AsCall().Args()) == 1 {
		text = strings.TrimSpace(text)
		text = strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(text, "string")), ")")
		if text = strings.TrimSpace(strings.TrimPrefix(text, "(")); Check(text) != nil {
			return "", fmt.Errorf("a call of string that cannot be read: write only its argument")
		}
		root = root.AsCall().Args()[0]
	}
	if err := callable(root, tree); err != nil {
		return "", err
	}
	if strings.Contains(text, ")%") || strings.ContainsAny(text, "\r\n\x00") {
		return "", errors.New("not writable in a format of Envoy: write it without line breaks and without )%")
	}
	return "%CEL(" + text + ")%", nil
}

func parse(text string) (*ast.AST, error) {
	p, err := parser.NewParser(parser.Macros(parser.HasMacro), parser.PopulateMacroCalls(true))
	if err != nil {
		return nil, fmt.Errorf("not readable: %w", err)
	}
	tree, errs := p.Parse(common.NewTextSource(text))
	if len(errs.GetErrors()) > 0 {
		e := errs.GetErrors()[0]
		message, _, _ := strings.Cut(strings.TrimPrefix(e.Message, "Syntax error: "), " expecting ")
		return nil, fmt.Errorf("no CEL expression: at column %d, %s", e.Location.Column()+1, message)
	}
	return tree, nil
}

// functions are those that a stock Envoy has, besides operators.
var functions = map[string]bool{
	"size": true, "contains": true, "startsWith": true, "endsWith": true, "matches": true, "has": true,
	"int": true, "uint": true, "double": true, "bool": true, "bytes": true, "dyn": true, "type": true, "duration": true, "timestamp": true,
	"getDate": true, "getDayOfMonth": true, "getDayOfWeek": true, "getDayOfYear": true, "getFullYear": true, "getHours": true,
	"getMilliseconds": true, "getMinutes": true, "getMonth": true, "getSeconds": true,
	"extract": true, "capture": true, "captureN": true, // of re
}

// callable returns an error if an expression calls a function that a stock Envoy does not have.
func callable(root ast.Expr, tree *ast.AST) error {
	for _, call := range ast.MatchDescendants(ast.NavigateExpr(tree, root), ast.KindMatcher(ast.CallKind)) {
		name := call.AsCall().FunctionName()
		if functions[name] || strings.ContainsAny(name, "_@!-") { // operators have such names
			continue
		}
		if name == "string" {
			return errors.New("a call of string inside of another expression: compare or show the value itself")
		}
		return fmt.Errorf("a call of %s, which is no function of Envoy: use one of its functions, such as contains, startsWith or matches", name)
	}
	return nil
}
