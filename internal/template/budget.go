// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package template

import (
	"fmt"
	"reflect"
	"strconv"
	"text/template/parse"

	text "github.com/DataDog/datadog-agent/pkg/template/text"
)

// budget counts the resources used by one execution.
type budget struct{ steps, depth, made int }

// Functions that enforce the budget. Templates cannot call them, because they are added after
// parsing.
const (
	stepName  = "_step"
	enterName = "_enter"
	leaveName = "_leave"
	outName   = "_out"
)

// bound instruments the parsed template so that the budget is enforced: the body of each range and
// of each template begins by counting its actions, each template counts its depth, and the output
// of each action is weighed before it is written.
func (b *budget) bound(parsed *text.Template) {
	parsed.Funcs(text.FuncMap{
		stepName:  b.step,
		enterName: b.enter,
		leaveName: func() string { b.depth--; return "" },
		outName:   func(v any) (any, error) { return v, b.weigh(v) },
	})
	for _, t := range parsed.Templates() {
		if t.Tree == nil || t.Root == nil {
			continue
		}
		boundBody(t.Root)
		t.Root.Nodes = append(append([]parse.Node{call(enterName, t.Root.Pos)}, t.Root.Nodes...), call(leaveName, t.Root.Pos))
	}
}

func (b *budget) step(n int) (string, error) {
	if b.steps += n; b.steps > maxSteps {
		return "", fmt.Errorf("more than %d actions were executed: look for a range or a template that does not finish", maxSteps)
	}
	return "", nil
}

func (b *budget) enter() (string, error) {
	if b.depth++; b.depth > maxDepth {
		return "", fmt.Errorf("templates call each other more than %d levels deep: check for one that calls itself", maxDepth)
	}
	return "", nil
}

// scan charges for scanning texts.
func (b *budget) scan(texts ...string) error {
	n := 0
	for _, s := range texts {
		n += len(s)
	}
	_, err := b.step(n / 1024)
	return err
}

// spend charges for n bytes that a function is about to allocate.
func (b *budget) spend(n int) error {
	if n < 0 || n > maxMade-b.made {
		return fmt.Errorf("the functions of the template make more than %d bytes", maxMade)
	}
	b.made += n
	return nil
}

// text charges for a text that a function has made from one of similar length.
func (b *budget) text(s string) (string, error) {
	if len(s) > maxText {
		return "", fmt.Errorf("a text has %d bytes; at most %d are allowed", len(s), maxText)
	}
	return s, b.spend(len(s))
}

// room charges for n bytes of text before they are allocated.
func (b *budget) room(n int) error {
	if n < 0 || n > maxText {
		return fmt.Errorf("a text of %d bytes is requested; at most %d are allowed", n, maxText)
	}
	return nil
}

// slot is the overhead of a list element, in bytes.
const slot = 16

// weigh charges for a value as if all its parts were written out. Lists may contain the same list
// many times, and a dict may contain itself.
func (b *budget) weigh(v any) error { return b.weighValue(reflect.ValueOf(v), 0) }

func (b *budget) weighValue(v reflect.Value, depth int) error {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if depth > maxDepth {
		return fmt.Errorf("a value is nested more than %d levels deep", maxDepth)
	}
	switch v.Kind() {
	case reflect.String:
		return b.spend(v.Len())
	case reflect.Slice, reflect.Array:
		if err := b.spend(slot * v.Len()); err != nil {
			return err
		}
		switch v.Type().Elem().Kind() {
		case reflect.Interface, reflect.String, reflect.Slice, reflect.Map:
		default:
			return nil // numbers
		}
		for i := range v.Len() {
			if err := b.weighValue(v.Index(i), depth+1); err != nil {
				return err
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			if err := b.spend(slot + len(entries.Key().String())); err != nil {
				return err
			}
			if err := b.weighValue(entries.Value(), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// boundBody inserts the counting action at the beginning of a body.
func boundBody(body *parse.ListNode) {
	cost := boundList(body)
	number := &parse.NumberNode{NodeType: parse.NodeNumber, Pos: body.Pos, IsInt: true, Int64: int64(cost), Text: strconv.Itoa(cost)}
	body.Nodes = append([]parse.Node{call(stepName, body.Pos, number)}, body.Nodes...)
}

// boundList instruments the nodes of a list and returns the number of its steps, excluding the
// bodies that count themselves.
func boundList(list *parse.ListNode) int {
	if list == nil {
		return 0
	}
	cost := 1
	for _, n := range list.Nodes {
		cost++
		switch n := n.(type) {
		case *parse.ActionNode:
			cost += len(n.Pipe.Cmds)
			if len(n.Pipe.Decl) == 0 {
				n.Pipe.Cmds = append(n.Pipe.Cmds, command(outName, n.Pos))
			}
		case *parse.IfNode:
			cost += len(n.Pipe.Cmds) + boundList(n.List) + boundList(n.ElseList)
		case *parse.WithNode:
			cost += len(n.Pipe.Cmds) + boundList(n.List) + boundList(n.ElseList)
		case *parse.RangeNode:
			cost += len(n.Pipe.Cmds) + boundList(n.ElseList)
			boundBody(n.List)
		}
	}
	return cost
}

func call(name string, pos parse.Pos, args ...parse.Node) *parse.ActionNode {
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: pos, Pipe: &parse.PipeNode{
		NodeType: parse.NodePipe, Pos: pos, Cmds: []*parse.CommandNode{command(name, pos, args...)},
	}}
}

func command(name string, pos parse.Pos, args ...parse.Node) *parse.CommandNode {
	return &parse.CommandNode{NodeType: parse.NodeCommand, Pos: pos, Args: append([]parse.Node{parse.NewIdentifier(name).SetPos(pos)}, args...)}
}
