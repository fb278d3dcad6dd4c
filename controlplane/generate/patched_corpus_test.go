// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// typesOfCorpus are the types in the comments of the corpus.
var typesOfCorpus = map[string]string{
	"clusters": xds.TypeCluster, "listeners": xds.TypeListener, "routes": xds.TypeRoute, "extensions": xds.TypeExtension, "bootstrap": xds.TypeBootstrap,
}

// corpusCase is an EnvoyFilter of testdata/envoyfilters and the world that it is added to. Its first
// comment says what it is for, the second which proxy it is for, and the others which text it adds to
// the resources of a type as JSON, or with a dash which text a listener loses.
type corpusCase struct {
	testCase
	filter *model.Config
	wants  []string
}

func corpus(t *testing.T) map[string]corpusCase {
	t.Helper()
	files, err := filepath.Glob("testdata/envoyfilters/*.yaml")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d EnvoyFilters: %v", len(files), err)
	}
	worlds := map[string]testCase{}
	out := map[string]corpusCase{}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := corpusAddresses.Replace(string(b))
		c := corpusCase{filter: decode(t, text)[0]}
		var comments []string
		for line := range strings.Lines(text) {
			if comment, ok := strings.CutPrefix(line, "# "); ok {
				comments = append(comments, strings.TrimSpace(comment))
			}
		}
		world := "testdata/patch-" + strings.TrimPrefix(comments[1], "proxy ")
		if _, ok := worlds[world]; !ok {
			w := loadCase(t, world)
			w.objects = decode(t, corpusAddresses.Replace(string(read(t, filepath.Join(world, "in.yaml")))+"---\n"+strings.TrimSpace(corpusServices[world])))
			w.proxy.IPs[0], w.mesh.ConnectTimeout = corpusAddresses.Replace(w.proxy.IPs[0]), durationpb.New(time.Hour)
			w.objects = slices.DeleteFunc(w.objects, func(o *model.Config) bool { return o.Kind == model.EnvoyFilter })
			w.proxy.Agent, w.proxy.Metadata = "1.18.2", map[string]string{"OWN": "yes"}
			worlds[world] = w
		}
		c.testCase, c.wants = worlds[world], comments[2:]
		out[filepath.Base(path)] = c
	}
	return out
}

func jsonOf(t testing.TB, set *xds.Set, name string) string {
	t.Helper()
	var b strings.Builder
	for _, r := range set.Resources {
		if name == "" || r.Name == name {
			b.Write(compactJSON(t, unpack(t, r)))
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// TestEnvoyFilterCorpus applies each EnvoyFilter of the corpus: each of its patches has an effect on
// the configuration, the one that its comment says. TestEnvoyFilterEffects has the effect in Envoy.
func TestEnvoyFilterCorpus(t *testing.T) {
	t.Parallel()
	for name, c := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := snapshot.Build(nil, inputOf(c.objects, c.mesh), model.Change{All: true})
			after := snapshot.Build(nil, inputOf(append(slices.Clone(c.objects), c.filter), c.mesh), model.Change{All: true})
			noProblems(t, after, c.proxy)
			g := New(Config{})
			if len(c.wants) == 0 {
				t.Fatal("it says no effect")
			}
			for _, want := range c.wants {
				typ, text, _ := strings.Cut(want, " ")
				was, is := false, true
				resource := ""
				if rest, ok := strings.CutPrefix(text, "-"); ok {
					was, is = true, false
					text, resource, _ = strings.Cut(rest, "@")
				}
				if got := strings.Contains(jsonOf(t, g.Generate(before, c.proxy, typesOfCorpus[typ]), resource), text); got != was {
					t.Errorf("%s: before it, the text is there: %t", want, got)
				}
				if got := strings.Contains(jsonOf(t, g.Generate(after, c.proxy, typesOfCorpus[typ]), resource), text); got != is {
					t.Errorf("%s: with it, the text is there: %t", want, got)
				}
			}
			hit := map[int]bool{}
			for _, typeURL := range append(slices.Clone(xds.Types), xds.TypeExtension, xds.TypeBootstrap) {
				for _, h := range g.Hits(after, c.proxy, typeURL) {
					hit[h.Patch.Index] = true
				}
			}
			if n := len(c.filter.Spec.(*networkingv1alpha3.EnvoyFilter).GetConfigPatches()); n == 0 || len(hit) != n {
				t.Errorf("%d of %d patches have an effect", len(hit), n)
			}
		})
	}
}
