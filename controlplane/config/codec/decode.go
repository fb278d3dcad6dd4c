// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// MaxFileSize bounds the YAML that [Decode] takes at once.
const MaxFileSize = 16 << 20

// Decode reads the objects of a YAML file of one or more documents, and
// checks each with [validate.Object]. A document may also be a List of objects.
// Source names the file in messages. What is wrong with one document becomes
// problems and hides nothing of the others: every object returned is valid
// and has a key of its own; the problems with it are warnings.
//
// A problem carries the key of its object unless the key itself is in doubt;
// then the name in it is empty.
func Decode(source string, data []byte) ([]*model.Config, []model.Problem) {
	return (&decoder{source: source, namespace: schema.DefaultNamespace}).decode(nil, data)
}

// DecodeContext is Decode that ends between two documents when ctx is done. It
// then returns the cause, and what it returns beside it is not complete.
func DecodeContext(ctx context.Context, source string, data []byte) ([]*model.Config, []model.Problem, error) {
	objects, problems := (&decoder{source: source, namespace: schema.DefaultNamespace}).decode(ctx.Done(), data)
	return objects, problems, ctx.Err()
}

// DecodeWritten is Decode for objects that will be written to a store: their
// ResourceVersion is that of metadata, empty for none, and objects that
// name no namespace are of the given one; empty means [DefaultNamespace].
// Like [DecodeContext] it ends early when ctx is done.
func DecodeWritten(ctx context.Context, source string, data []byte, namespace string) ([]*model.Config, []model.Problem, error) {
	objects, problems := (&decoder{source: source, namespace: cmp.Or(namespace, schema.DefaultNamespace), written: true}).decode(ctx.Done(), data)
	return objects, problems, ctx.Err()
}

// DecodeManifests is DecodeWritten for files that also hold objects for others than the mesh. It
// skips the objects whose API group is not one of the mesh, and returns their number. It ends early
// when done, which may be nil, is closed.
func DecodeManifests(done <-chan struct{}, source string, data []byte, namespace string) (objects []*model.Config, problems []model.Problem, skipped int) {
	d := &decoder{source: source, namespace: cmp.Or(namespace, schema.DefaultNamespace), written: true, skips: true}
	objects, problems = d.decode(done, data)
	return objects, problems, d.skipped
}

// DecodeForeign is DecodeWritten for objects that a cluster holds, whose
// definitions may know more fields than this version: an unknown field is a
// warning.
func DecodeForeign(source string, data []byte) ([]*model.Config, []model.Problem) {
	return (&decoder{source: source, namespace: schema.DefaultNamespace, written: true, lenient: true}).decode(nil, data)
}

// decode reads all documents; it ends early when done, which may be nil, is
// closed.
func (d *decoder) decode(done <-chan struct{}, data []byte) ([]*model.Config, []model.Problem) {
	d.seen, d.bad = map[model.Key]int{}, map[model.Key]bool{}
	work := &parseWork{search: mostSearched}
	if len(data) > MaxFileSize {
		d.problem(model.Key{}, 1, fmt.Sprintf(
			"the file is larger than %d MiB, the limit for one file: split it into several files", MaxFileSize>>20))
		return nil, d.problems
	}
	if n := countDocuments(data); n > MaxDocuments {
		d.problem(model.Key{}, 1, fmt.Sprintf("the file has %d documents, and at most %d are read: split it into several files", n, MaxDocuments))
		return nil, d.problems
	}
	for c := range Documents(data) {
		if isDone(done) {
			break
		}
		docs, faults := c.parse(work)
		for _, f := range faults {
			d.problem(model.Key{}, f.line, f.text)
		}
		for _, doc := range docs {
			d.document(done, doc, 0)
		}
	}
	d.unlistedErrors += max(0, d.unnamed-field.MaxListed) + work.unlisted
	if more := d.unlistedErrors + d.unlistedWarnings; more > 0 {
		d.problems = append(d.problems, model.Problem{
			Source: d.source, Reason: field.Unlisted(more, "problem"), Warning: d.unlistedErrors == 0, Unlisted: more,
		})
	}
	return d.objects, d.problems
}

// decoder gathers what the documents of one file give.
type decoder struct {
	source string
	// namespace is that of objects that name none.
	namespace string
	// written means that resource versions are taken from metadata.
	written bool
	// lenient makes unknown fields warnings.
	lenient bool
	// skips means that unknown kinds of other API groups are counted in skipped, and no problem.
	skips    bool
	skipped  int
	objects  []*model.Config
	problems []model.Problem
	// unnamed counts the problems that belong to no object.
	unnamed int
	// unlistedErrors and unlistedWarnings count problems with objects that are
	// not listed.
	unlistedErrors, unlistedWarnings int
	// items counts those of all lists.
	items int
	// seen holds the line of each key of the file; bad has those with errors.
	seen map[model.Key]int
	bad  map[model.Key]bool
}

func (d *decoder) place(line int) string { return fmt.Sprintf("%s:%d", d.source, line) }

func (d *decoder) problem(key model.Key, line int, reason string) {
	if key.Name == "" {
		if d.unnamed++; d.unnamed > field.MaxListed {
			return
		}
	}
	d.problems = append(d.problems, model.Problem{Object: key, Source: d.place(line), Reason: reason})
}

// document reads one object or a list of objects.
func (d *decoder) document(done <-chan struct{}, n *yaml.Node, depth int) {
	if n.Kind != yaml.MappingNode {
		d.problem(model.Key{}, n.Line, "this document is "+shape(n)+": it must be an object with apiVersion, kind, metadata and spec")
		return
	}
	var kind string
	var items *yaml.Node
	Pairs(n, func(key, value *yaml.Node) {
		switch key.Value {
		case "kind":
			kind = value.Value
		case "items":
			items = value
		}
	})
	if items == nil || !strings.HasSuffix(kind, "List") {
		d.object(n)
		return
	}
	switch {
	case isNull(items):
	case items.Kind != yaml.SequenceNode:
		d.problem(model.Key{}, items.Line, "items is "+shape(items)+": it must be a list of objects")
	case depth > 0:
		d.problem(model.Key{}, n.Line, "a "+kind+" is inside a list: write its items into the outer list")
	default:
		if d.items += len(items.Content); d.items > MaxDocuments {
			d.problem(model.Key{}, n.Line, fmt.Sprintf("the lists of the file have %d items up to here, and at most %d are read: split the file", d.items, MaxDocuments))
			return
		}
		for _, item := range items.Content {
			if isDone(done) {
				return
			}
			d.document(done, item, depth+1)
		}
	}
}

// object reads one object.
func (d *decoder) object(n *yaml.Node) {
	b := &builder{lenient: d.lenient}
	h := b.head(n)
	key := model.Key{Kind: model.Kind(h.kind)}
	spec, ok := schema.For(h.apiVersion, h.kind)
	switch {
	case ok:
		key.Kind = spec.Kind
		if text := spec.APIVersionFault(h.apiVersion); text != "" {
			b.faults = append(b.faults, fault{line: h.apiVersionLine, text: text})
		}
	case h.kind == "":
		// Whatever else is wrong, this is not one of our objects.
		d.problem(key, h.kindLine, "kind is missing: write one of "+schema.Names())
		return
	case h.kind == "Secret" && h.apiVersion == "v1":
		return // one of package credentials, which may share the directory
	case d.skips && h.apiVersion != "" && !schema.OfMesh(h.apiVersion):
		d.skipped++
		return
	case h.kind == "ConfigMap" && h.apiVersion == "v1":
		return // the same, with roots
	default:
		reason := "kind " + field.Quote(h.kind) + " is unknown"
		if d.unnamed < field.MaxListed { // else nobody reads the hint
			reason += didYouMeanKind(h.kind)
		}
		d.problem(key, h.kindLine, reason)
		return
	}
	meta := b.metadata(h.metadata, n, spec.Cluster, d.namespace)
	if meta.name != "" {
		key.Namespace, key.Name = meta.namespace, meta.name
	}
	c := &model.Config{
		Key:         key,
		APIVersion:  h.apiVersion,
		Labels:      meta.labels,
		Annotations: meta.annotations,
		Created:     meta.created,
		Source:      d.place(n.Line),
		Spec:        spec.NewSpec(),
	}
	switch text := sizeFault(n); {
	case text != "":
		b.errorf(n, "%s", text)
	case h.spec != nil && !isNull(h.spec):
		b.spec(h.spec, c.Spec, "spec")
	case spec.Group == schema.GroupGateway:
		b.errorf(n, "spec is missing: write it, {} for an empty one")
	}
	if b.count() == 0 {
		b.validate(c, spec, h.spec, n)
	}
	if first, ok := d.seen[key]; ok && key.Name != "" {
		b.faults = append(b.faults, fault{line: n.Line, text: fmt.Sprintf(
			"the same object is already on line %d: remove one of them", first)})
	}
	if key.Name != "" {
		d.seen[key] = n.Line
	}
	b.report(d, key, n.Line)
	if b.count() > 0 {
		d.bad[key] = true
		return
	}
	if c.ResourceVersion = meta.resourceVersion; !d.written {
		c.ResourceVersion = contentVersion(c)
	}
	d.objects = append(d.objects, c)
}

// report makes problems of the warnings and faults of an object that begins on
// a line.
func (b *builder) report(d *decoder, key model.Key, line int) {
	for _, list := range []struct {
		faults   []fault
		unlisted int
		what     string
	}{{b.warnings, b.unlistedWarnings, "warning"}, {b.faults, b.unlisted, "error"}} {
		slices.SortStableFunc(list.faults, func(a, b fault) int { return cmp.Compare(a.line, b.line) })
		if list.unlisted > 0 {
			list.faults = append(list.faults, fault{line, field.Unlisted(list.unlisted, list.what)})
		}
		for i, f := range list.faults {
			if key.Name == "" {
				d.unnamed++
			}
			switch {
			case key.Name == "" && d.unnamed > field.MaxListed:
			case len(d.problems) < maxOfFile, list.what == "error" && i == 0 && !d.bad[key]:
				d.problems = append(d.problems, model.Problem{Object: key, Source: d.place(f.line), Reason: f.text, Warning: list.what == "warning"})
			case list.what == "error":
				d.unlistedErrors++
			default:
				d.unlistedWarnings++
			}
		}
	}
}

// isDone reports whether done is closed; nil never is.
func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func didYouMeanKind(kind string) string {
	var names []string
	for _, s := range schema.All() {
		names = append(names, s.Name)
	}
	if hint := field.DidYouMean(kind, names); strings.Contains(hint, "did you mean") {
		return hint
	}
	return ": write one of " + schema.Names()
}

// validate runs the rules of the kind and finds the line of each fault.
func (b *builder) validate(c *model.Config, sch schema.Schema, specNode, object *yaml.Node) {
	found := validate.Spec(c, sch)
	place := func(list []field.Error) (out []fault) {
		for _, e := range list {
			at := object
			if strings.HasPrefix(e.Path, "metadata") {
				at = locate(object, "."+e.Path)
			}
			if strings.HasPrefix(e.Path, "spec") && specNode != nil && specNode.Kind == yaml.MappingNode {
				at = locate(specNode, e.Path)
			}
			out = append(out, fault{line: at.Line, text: e.Error()})
		}
		return out
	}
	b.faults, b.unlisted = place(found.Errors), found.Unlisted
	b.warnings, b.unlistedWarnings = append(b.warnings, place(found.Warnings)...), b.unlistedWarnings+found.UnlistedWarnings
}

// Line returns the line of a field of an object, such as spec.http[0].match[1], or of the deepest one on
// the way that exists.
func Line(object *yaml.Node, path string) int { return locate(object, "."+path).Line }

// locate finds the node of a field path such as spec.http[0].match[1], or
// the deepest node on the way that exists.
func locate(spec *yaml.Node, path string) *yaml.Node {
	n, last := spec, spec
	path = strings.TrimPrefix(path, "spec")
	for path != "" {
		var name string
		if path[0] == '[' {
			end := strings.IndexByte(path, ']')
			if end < 0 {
				return last
			}
			name, path = path[1:end], path[end+1:]
		} else {
			rest := path[1:]
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			name, path = rest[:end], rest[end:]
		}
		key, value := step(n, name)
		if value == nil {
			return last
		}
		n, last = value, key
	}
	return last
}

// step returns the place and the value of a field or list item.
func step(n *yaml.Node, name string) (place, value *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		same := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
		wanted := same(name)
		Pairs(n, func(k, v *yaml.Node) {
			if k.Value == name || value == nil && same(k.Value) == wanted {
				place, value = k, v
			}
		})
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i]
		}
	}
	return place, value
}
