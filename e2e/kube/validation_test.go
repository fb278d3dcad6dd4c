// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestValidationLikeAPIServer sends the objects of the tests of package config to a real API
// server, and compares its verdicts with those of Decode:
//   - a cluster with the Gateway API of the standard channel
//   - one with the Gateway API of the experimental channel, and with the kinds
//     of Istio
//
// Decode may refuse what the API server accepts, as Istio's webhook does; the files of
// validate/testdata mark these cases. It never accepts what the API server refuses.
func TestValidationLikeAPIServer(t *testing.T) {
	t.Parallel()
	standard := moduleFolder(t, "sigs.k8s.io/gateway-api", "config/crd/standard")
	experimental := moduleFolder(t, "sigs.k8s.io/gateway-api", "config/crd/experimental")
	istio := moduleFolder(t, "istio.io/api", "kubernetes")
	t.Run("standard", func(t *testing.T) {
		t.Parallel()
		compareVerdicts(t, func(m manifest) bool {
			return strings.HasPrefix(m.object.GetAPIVersion(), "gateway.networking.k8s.io/") && !m.says("# channel: experimental")
		}, standard)
	})
	t.Run("experimental", func(t *testing.T) {
		t.Parallel()
		compareVerdicts(t, func(manifest) bool { return true }, experimental, istio)
	})
}

// morePermissive are the objects that Decode accepts and the API server
// refuses, by place, with the reason.
var morePermissive = map[string]string{
	"shapes.yaml document 3":               "protobuf's JSON takes numbers in quotes, and so does Istio when it reads files",
	"httproute-rule-names.yaml document 1": "the standard channel accepts it",
	"grpcroute-rule-names.yaml document 1": "the standard channel accepts it",
}

// manifest is one object of a file.
type manifest struct {
	place  string
	text   []byte
	object *unstructured.Unstructured
	// annotated means that the file contains the verdict of the API server.
	annotated bool
}

func (m manifest) says(comment string) bool {
	return slices.Contains(strings.Split(string(m.text), "\n"), comment)
}

func moduleFolder(t *testing.T, module, folder string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("find the module %s: %v", module, err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), folder)
}

// manifests reads the objects that the tests of the packages codec and validate have.
func manifests(t *testing.T) (list []manifest) {
	t.Helper()
	for _, pattern := range []string{"codec/testdata/*.yaml", "validate/testdata/good/*.yaml", "validate/testdata/bad/*.yaml"} {
		files, err := filepath.Glob(filepath.Join("../../controlplane/config", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for i, text := range bytes.Split(data, []byte("\n---")) {
				objects, err := decode(text)
				if err != nil || len(objects) != 1 || objects[0].GetKind() == "" || objects[0].GetName() == "" {
					continue // other documents never reach the rules
				}
				list = append(list, manifest{
					place: fmt.Sprintf("%s document %d", filepath.Base(file), i+1), text: text, object: objects[0],
					annotated: strings.HasPrefix(pattern, "validate/"),
				})
			}
		}
	}
	return list
}

func compareVerdicts(t *testing.T, wanted func(manifest) bool, definitions ...string) {
	t.Helper()
	c := New(t, Options{})
	ctx := testContext(t)
	for _, folder := range definitions {
		if err := c.ApplyCRDs(ctx, folder); err != nil {
			t.Fatal(err)
		}
	}
	groups, err := restmapper.GetAPIGroupResources(c.Admin().Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	client, err := dynamic.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	agreed, stricter := 0, 0
	for _, m := range manifests(t) {
		kind := m.object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil || !wanted(m) {
			continue // another kind, such as an invented one
		}
		refused := create(ctx, t, c, client, mapping, m)
		problems := slices.DeleteFunc(decodeProblems(m), func(p model.Problem) bool { return p.Warning })
		switch {
		case (refused == nil) == (len(problems) == 0):
			agreed++
		case refused == nil:
			stricter++
			if m.annotated && !m.says("# api server: accepts") {
				t.Errorf("%s: Decode refuses what the API server accepts: %v", m.place, problems)
			}
		case morePermissive[m.place] == "":
			t.Errorf("%s: Decode accepts what the API server refuses: %v", m.place, refused)
		}
		if m.says("# api server: accepts") && refused != nil {
			t.Errorf("%s says that the API server accepts it: %v", m.place, refused)
		}
	}
	t.Logf("%d verdicts agree, in %d Decode is stricter", agreed, stricter)
	if agreed < 80 {
		t.Errorf("only %d verdicts agree", agreed)
	}
}

func decodeProblems(m manifest) []model.Problem {
	_, problems := codec.Decode("", m.text)
	return problems
}

// create returns the verdict of the API server, and leaves no object behind.
func create(ctx context.Context, t *testing.T, c *Cluster, client dynamic.Interface, mapping *meta.RESTMapping, m manifest) error {
	t.Helper()
	object := m.object.DeepCopy()
	var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if object.GetNamespace() == "" {
			object.SetNamespace("default")
		}
		if err := c.CreateNamespace(ctx, object.GetNamespace()); err != nil {
			return err // not the name of a namespace
		}
		resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	_, err := resource.Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	return err
}
