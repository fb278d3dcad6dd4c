// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"os"
	"testing"

	"go.uber.org/goleak"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDecodedObject(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, problems := Decode("good.yaml", data)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	se, vs := objects[0], objects[3]
	if se.Labels["team"] != "shop" || se.Namespace != "default" || !se.Created.IsZero() {
		t.Errorf("metadata: got %+v", se)
	}
	if vs.Created.Year() != 2030 {
		t.Errorf("Created = %v, want 2030", vs.Created)
	}
	spec := vs.Spec.(*networkingv1alpha3.VirtualService)
	if got := spec.GetHttp()[0].GetTimeout().AsDuration().Milliseconds(); got != 250 {
		t.Errorf("timeout: got %d ms, want 250", got)
	}
	if got := objects[2].Spec.(*networkingv1alpha3.DestinationRule).GetTrafficPolicy().GetConnectionPool().
		GetTcp().GetConnectTimeout().AsDuration().Minutes(); got != 1 {
		t.Errorf("connectTimeout: got %v min, want 1", got)
	}
	for _, c := range objects {
		if errs, warnings := validate.Object(c); len(errs)+len(warnings) > 0 {
			t.Errorf("validate.Object(%s) = %v, %v; want none", c.Key, errs, warnings)
		}
	}
}

func TestResourceVersion(t *testing.T) {
	t.Parallel()
	decode := func(text string) *model.Config {
		objects, problems := Decode("x", []byte(text))
		if len(objects) != 1 {
			t.Fatal(problems)
		}
		return objects[0]
	}
	const base = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\n"
	a := decode(base + "metadata: {name: a, labels: {x: y, z: w}}\nspec: {address: 10.0.0.1}")
	same := decode("# moved\n" + base + "spec:\n  address: \"10.0.0.1\"\nmetadata: {labels: {z: w, x: y}, name: a}")
	if a.ResourceVersion != same.ResourceVersion {
		t.Error("equal contents have different versions")
	}
	seen := map[string]bool{a.ResourceVersion: true}
	for _, text := range []string{
		"metadata: {name: a, labels: {x: y, z: v}}\nspec: {address: 10.0.0.1}",
		"metadata: {name: a, annotations: {x: y, z: w}}\nspec: {address: 10.0.0.1}",
		"metadata: {name: a, labels: {x: y, z: w}}\nspec: {address: 10.0.0.2}",
		"metadata: {name: a, labels: {x: y, z: w}, creationTimestamp: 2030-01-01T00:00:00Z}\nspec: {address: 10.0.0.1}",
	} {
		if v := decode(base + text).ResourceVersion; seen[v] {
			t.Errorf("different contents have the same version: %s", text)
		} else {
			seen[v] = true
		}
	}
}

// Secrets may be in the same directory; package credentials reads them.
func TestSecretsAreSkipped(t *testing.T) {
	t.Parallel()
	objects, problems := Decode("a.yaml", []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {tls.key: hunter2}\n"))
	if len(objects) != 0 || len(problems) != 0 {
		t.Errorf("Decode of a Secret = %v, %v; want neither objects nor problems", objects, problems)
	}
	if _, problems := Decode("a.yaml", []byte("apiVersion: v2\nkind: Secret\n")); len(problems) != 1 {
		t.Errorf("problems of a Secret of version v2: got %v, want 1", problems)
	}
}

// TestEmptyValuesOfClusters checks that empty texts and numbers, which today's definitions refuse, are
// read where a cluster still holds them; empty lists of a policy never are.
func TestEmptyValuesOfClusters(t *testing.T) {
	t.Parallel()
	const text = `apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: a}
spec: {jwtRules: [{issuer: a, jwksUri: ""}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: b}
spec: {hosts: [b.example.com], ports: [{number: 80, name: http, protocol: HTTP, targetPort: 0}], resolution: DNS}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: c}
spec: {rules: [{from: []}]}
`
	if objects, problems := Decode("x", []byte(text)); len(objects) != 0 || len(problems) != 3 {
		t.Errorf("Decode = %v, %v; want no object and 3 problems", objects, problems)
	}
	objects, problems := DecodeForeign("x", []byte(text))
	if len(objects) != 2 || len(problems) != 1 || problems[0].Object.Name != "c" {
		t.Errorf("DecodeForeign = %v, %v; want the first two objects and the problem of the third", objects, problems)
	}
}
