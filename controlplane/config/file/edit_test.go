// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/edit"
	"go.yaml.in/yaml/v3"
)

const (
	firstDoc  = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: a\nspec:\n  address: 10.0.0.1\n"
	secondDoc = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: b} # of b\nspec: {address: 10.0.0.2}\n"
	thirdDoc  = "kind: WorkloadEntry\napiVersion: networking.istio.io/v1beta1\nmetadata: {name: c, namespace: default}\nspec: {address: 10.0.0.3}\n"
)

// FuzzEditObject replaces and removes each object of a file, and checks that all other documents
// remain byte for byte the same and keep their meaning.
func FuzzEditObject(f *testing.F) {
	for _, s := range []string{
		firstDoc, firstDoc + "---\n" + secondDoc + "# x\n---\n" + thirdDoc, "# h\n---\n" + firstDoc + "---\nkind: [\n", firstDoc + "...\n" + secondDoc,
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: a}, spec: {address: 1.1.1.1}}\n",
		"--- {kind: WorkloadEntry, apiVersion: networking.istio.io/v1, metadata: {name: b}, spec: {address: 10.0.0.1}}\n# t\n--- # c\n" + thirdDoc,
		"x: &a 1\n---\n" + secondDoc + "\n\n#\n", "%YAML 1.1\n---\n" + firstDoc, "\ufeff" + firstDoc, strings.ReplaceAll(firstDoc+"---\n"+secondDoc, "\n", "\r\n"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := decodeContent(context.Background(), "f", data)
		for _, c := range before.objects {
			next := c.Clone()
			next.Labels = map[string]string{"edited": "yes"}
			doc, err := encodeDocument("", next)
			if err != nil {
				t.Fatal(err)
			}
			was, err := encodeDocument("", c)
			if err != nil {
				t.Fatal(err)
			}
			if out, err := edit.Fields(data, c.Key, was, doc); err == nil {
				checkChunks(t, data, out)
			}
			for _, doc := range [][]byte{doc, nil} {
				out, err := edit.Object(data, c.Key, doc)
				if err != nil {
					continue // the edit is rejected, and nothing is written
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

// plain reports whether each chunk of a file is a single document that is not a list.
func plain(data []byte) bool {
	for c := range codec.Documents(data) {
		docs := c.Nodes()
		if len(docs) > 1 {
			return false
		}
		for _, doc := range docs {
			list := false
			codec.Pairs(doc, func(key, _ *yaml.Node) { list = list || key.Value == "items" })
			if list {
				return false
			}
		}
	}
	return true
}

// checkChunks checks that at most one document differs.
func checkChunks(t *testing.T, before, after []byte) {
	t.Helper()
	texts := func(data []byte) (all []string) {
		for c := range codec.Documents(data) {
			all = append(all, string(c.Text))
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
