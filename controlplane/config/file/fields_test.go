// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestStoreChangesOnlyWhatDiffers shifts traffic from one version to another and checks that only
// two lines of the file change.
func TestStoreChangesOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	const text = `# Canary of the catalog. Ask the shop team before you change it.
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: catalog}   # in "default"
spec:
    hosts: ["catalog"]
    http:
        - name: "all"       # every request
          route:
            # the old one
            - destination: {host: catalog, subset: v1}
              weight: 90
            # the new one
            - {destination: {host: catalog, subset: v2}, weight: 10}
          timeout: 1m

# the end
`
	r := follow(t, func(dir string) { must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600)) })
	key := model.Key{Kind: model.VirtualService, Namespace: "default", Name: "catalog"}
	_, err := r.Patch(t.Context(), key, func(c *model.Config) error {
		route := c.Spec.(*networkingv1alpha3.VirtualService).GetHttp()[0].GetRoute()
		route[0].Weight, route[1].Weight = 50, 50
		return nil
	})
	must(t, err)
	want := strings.NewReplacer("weight: 90", "weight: 50", "weight: 10", "weight: 50").Replace(text)
	if diff := cmp.Diff(want, r.read("a.yaml")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestChangesOfAllKinds changes the labels of every valid object in the test data of package
// validate, and reverts that: the text must be the same as before.
func TestChangesOfAllKinds(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../validate/testdata/good/*.yaml")
	must(t, err)
	if len(paths) == 0 {
		t.Fatal("no files")
	}
	whole := 0
	for _, path := range paths {
		data, err := os.ReadFile(path)
		must(t, err)
		before := decodeContent(t.Context(), "f", data)
		for _, c := range before.objects {
			next := c.Clone()
			next.Labels = map[string]string{"edited": "yes"}
			maps.Copy(next.Labels, c.Labels)
			text, after, err := rewriting{key: c.Key, was: c, now: next}.text(t.Context(), "f", data, before)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if added := len(bytes.Split(text, []byte("\n"))) - len(bytes.Split(data, []byte("\n"))); added < 0 || added > 2 {
				whole++
				t.Logf("%s is rewritten as a whole:\n%s", path, text)
			}
			i := slices.IndexFunc(after.objects, func(o *model.Config) bool { return o.Key == c.Key })
			back, _, err := rewriting{key: c.Key, was: after.objects[i], now: c}.text(t.Context(), "f", text, after)
			must(t, err)
			if again := decodeContent(t.Context(), "f", back); len(again.objects) != len(before.objects) || !model.SameSpec(again.objects[0].Spec, before.objects[0].Spec) {
				t.Errorf("%s: the text differs after the change was reverted:\n%s", path, back)
			}
		}
	}
	if whole > 0 {
		t.Errorf("%d of %d files were rewritten as a whole, want none", whole, len(paths))
	}
}
