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

// budget is what one execution has used.
type budget struct{ steps, depth, made int }

// The functions that bound calls. A template cannot name them, for they are
// added when it has been parsed.
const (
	stepName  = "_step"
	enterName = "_enter"
	leaveName = "_leave"
	outName   = "_out"
)

// bound changes what was parsed so that the budget counts it: the body of each
// range and of each template begins with its number of actions, each template
// with its depth, and what an action prints is weighed before.
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
		return "", fmt.Errorf("more than %d actions were executed: look for a range or a template that does not end", maxSteps)
	}
	return "", nil
}

func (b *budget) enter() (string, error) {
	if b.depth++; b.depth > maxDepth {
		return "", fmt.Errorf("templates call each other more than %d levels deep: look for one that calls itself", maxDepth)
	}
	return "", nil
}

// scan counts the reading of a text.
func (b *budget) scan(texts ...string) error {
	n := 0
	for _, s := range texts {
		n += len(s)
	}
	_, err := b.step(n / 1024)
	return err
}

// spend counts bytes that a function is about to make.
func (b *budget) spend(n int) error {
	if n < 0 || n > maxMade-b.made {
		return fmt.Errorf("the functions of the template make more than %d bytes", maxMade)
	}
	b.made += n
	return nil
}

// text counts a text that a function has made out of one about as long.
func (b *budget) text(s string) (string, error) {
	if len(s) > maxText {
		return "", fmt.Errorf("a text has %d bytes, it may have %d", len(s), maxText)
	}
	return s, b.spend(len(s))
}

// room asks for n bytes of text before they are made.
func (b *budget) room(n int) error {
	if n < 0 || n > maxText {
		return fmt.Errorf("a text of %d bytes is asked for, it may have %d", n, maxText)
	}
	return nil
}

// slot is what an element of a list costs beside its content.
const slot = 16

// weigh counts a value as if each part of it were written out. Lists may hold
// a list many times, and a dict itself.
func (b *budget) weigh(v any) error { return b.weighValue(reflect.ValueOf(v), 0) }

func (b *budget) weighValue(v reflect.Value, depth int) error {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if depth > maxDepth {
		return fmt.Errorf("a value holds others more than %d levels deep", maxDepth)
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

// boundBody puts the count in front of a body.
func boundBody(body *parse.ListNode) {
	cost := boundList(body)
	number := &parse.NumberNode{NodeType: parse.NodeNumber, Pos: body.Pos, IsInt: true, Int64: int64(cost), Text: strconv.Itoa(cost)}
	body.Nodes = append([]parse.Node{call(stepName, body.Pos, number)}, body.Nodes...)
}

// boundList bounds what is in a list and returns how many steps it takes
// without the bodies that count themselves.
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
