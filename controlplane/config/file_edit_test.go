// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	docA = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: a\nspec:\n  address: 10.0.0.1\n"
	docB = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: b} # of b\nspec: {address: 10.0.0.2}\n"
	docC = "kind: WorkloadEntry\napiVersion: networking.istio.io/v1beta1\nmetadata: {name: c, namespace: default}\nspec: {address: 10.0.0.3}\n"
	docX = "NEW\n"
)

func TestEditObject(t *testing.T) {
	t.Parallel()
	list := "# list\napiVersion: v1\nkind: List\nitems:\n# first\n- apiVersion: networking.istio.io/v1\n  kind: WorkloadEntry\n" +
		"  metadata: {name: a}\n  spec: {address: 10.0.0.1} # near\n- apiVersion: networking.istio.io/v1\n  kind: WorkloadEntry\n" +
		"  metadata: {name: b}\n  spec: {address: 10.0.0.2}\n# end\n"
	for _, c := range []struct{ name, text, key, replaced, removed string }{
		{"alone", docB, "b", docX, ""},
		{"head", "# licence\n\n" + docB, "b", "# licence\n\n" + docX, ""},
		{"middle", docA + "---\n# b\n" + docB + "--- # c\n" + docC, "b", docA + "---\n# b\n" + docX + "--- # c\n" + docC, docA + "--- # c\n" + docC},
		{"first", docA + "---\n" + docB, "a", docX + "---\n" + docB, "---\n" + docB},
		{"last without newline", docA + "---\n" + strings.TrimSpace(docB), "b", docA + "---\n" + docX, docA},
		{"tail", docB + "# on the next\n---\n" + docC, "b", docX + "# on the next\n---\n" + docC, "# on the next\n---\n" + docC},
		{"tail after a marker", "---\n" + docB + "# on the next\n---\n" + docC, "b", "---\n" + docX + "# on the next\n---\n" + docC, "---\n# on the next\n---\n" + docC},
		{"on the line of the marker", docA + "--- {kind: WorkloadEntry, apiVersion: networking.istio.io/v1, metadata: {name: b}, spec: {address: 10.0.0.1}}\n", "b", docA + "---\n" + docX, docA},
		{"broken neighbour", "kind: [\n---\n" + docB + "---\n\t- x\n", "b", "kind: [\n---\n" + docX + "---\n\t- x\n", "kind: [\n---\n\t- x\n"},
		{"broken spec", docA + "---\nspec: {address: 7, x: y}\n" + strings.ReplaceAll(docB, "spec: {address: 10.0.0.2}\n", ""), "b", docA + "---\n" + docX, docA},
		{"another key first", strings.ReplaceAll(docB, "name: b", "name: b, namespace: other") + "---\n" + docB, "b", strings.ReplaceAll(docB, "name: b", "name: b, namespace: other") + "---\n" + docX, strings.ReplaceAll(docB, "name: b", "name: b, namespace: other")},
		{
			"list", docC + "---\n" + list, "b",
			docC + "---\n# list\napiVersion: v1\nkind: List\nitems:\n  # first\n  - apiVersion: networking.istio.io/v1\n    kind: WorkloadEntry\n    metadata: {name: a}\n    spec: {address: 10.0.0.1} # near\n  - NEW\n# end\n",
			docC + "---\n# list\napiVersion: v1\nkind: List\nitems:\n  # first\n  - apiVersion: networking.istio.io/v1\n    kind: WorkloadEntry\n    metadata: {name: a}\n    spec: {address: 10.0.0.1} # near\n# end\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			key := model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: c.key}
			for doc, want := range map[string]string{docX: c.replaced, "": c.removed} {
				var text []byte
				if doc != "" {
					text = []byte(doc)
				}
				got, err := editObject([]byte(c.text), key, text)
				if err != nil || string(got) != want {
					t.Errorf("with %q it is:\n%s%v\nwant:\n%s", doc, got, err, want)
				}
			}
			key.Name = "none"
			if _, err := editObject([]byte(c.text), key, nil); !errors.Is(err, errNotFound) {
				t.Errorf("an object that is not there: %v", err)
			}
		})
	}
	if _, err := editObject([]byte(docA+"...\n"+docB), model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "b"}, nil); err == nil {
		t.Error("a document that cannot be told from its neighbour was removed")
	}
}

// FuzzEditObject replaces and removes each object of a file: all other
// documents stay byte for byte, and mean what they meant.
func FuzzEditObject(f *testing.F) {
	for _, s := range []string{
		docA, docA + "---\n" + docB + "# x\n---\n" + docC, "# h\n---\n" + docA + "---\nkind: [\n", docA + "...\n" + docB,
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: a}, spec: {address: 1.1.1.1}}\n",
		"--- {kind: WorkloadEntry, apiVersion: networking.istio.io/v1, metadata: {name: b}, spec: {address: 10.0.0.1}}\n# t\n--- # c\n" + docC,
		"x: &a 1\n---\n" + docB + "\n\n#\n", "%YAML 1.1\n---\n" + docA, "\ufeff" + docA, strings.ReplaceAll(docA+"---\n"+docB, "\n", "\r\n"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := decodeContent(context.Background(), "f", data)
		for _, c := range before.objects {
			next := c.Clone()
			next.Labels = map[string]string{"edited": "yes"}
			doc, err := encodeDocument(next)
			if err != nil {
				t.Fatal(err)
			}
			for _, doc := range [][]byte{doc, nil} {
				out, err := editObject(data, c.Key, doc)
				if err != nil {
					continue // it is refused, and nothing is written
				}
				checkChunks(t, data, out)
				err = acceptable(before, decodeContent(context.Background(), "f", out), c.Key, doc != nil)
				if err != nil && len(before.problems) == 0 && plain(data) {
					t.Fatalf("%s: %v\nbefore:\n%s\nafter:\n%s", c.Key, err, data, out)
				}
			}
		}
	})
}

// plain reports whether each chunk of a file is one document, and no list.
func plain(data []byte) bool {
	for c := range splitDocuments(data) {
		docs, faults := c.parse(&parseWork{})
		if len(docs) > 1 || len(faults) > 0 || len(docs) == 1 && listItems(docs[0]) != nil {
			return false
		}
	}
	return true
}

// checkChunks wants that at most one document differs.
func checkChunks(t *testing.T, before, after []byte) {
	t.Helper()
	texts := func(data []byte) (all []string) {
		for c := range splitDocuments(data) {
			all = append(all, string(c.text))
		}
		return all
	}
	a, b := texts(before), texts(after)
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	slices.Reverse(a)
	slices.Reverse(b)
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	if len(a) > 1 || len(b) > 1 {
		t.Fatalf("%d documents became %d:\n%q\n%q", len(a), len(b), a, b)
	}
}
