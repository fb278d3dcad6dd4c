// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package charts

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
)

var update = flag.Bool("update", false, "write outrigger/crds again")

//go:generate go test -run ^TestDefinitions$ . -update

const definitionsFile = Root + "/crds/istio.yaml"

// TestDefinitions compares the definitions of the chart with the table of kinds: Istio's kinds in
// all versions that are read, with any spec. The webhook checks what objects say. The definitions
// of the Gateway API are not the mesh's, and Ingress is a part of Kubernetes.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	want := definitions()
	if *update {
		if err := os.WriteFile(definitionsFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Chart.ReadFile(definitionsFile)
	if *update {
		got, err = os.ReadFile(definitionsFile)
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s differs from the table of kinds: run make generate (%v)", definitionsFile, err)
	}
}

func definitions() []byte {
	var b bytes.Buffer
	b.WriteString("# Made from the table of controlplane/config/schema by make generate.\n")
	for _, s := range schema.All() {
		if !strings.HasSuffix(s.Group, ".istio.io") {
			continue
		}
		singular := strings.ToLower(s.Name)
		fmt.Fprintf(&b, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %s.%s
  labels:
    app.kubernetes.io/part-of: outrigger
  annotations:
    helm.sh/resource-policy: keep
spec:
  group: %s
  scope: Namespaced
  names:
    kind: %s
    listKind: %sList
    plural: %s
    singular: %s
    categories: [istio-io]
`, s.Plural, s.Group, s.Group, s.Name, s.Name, s.Plural, singular)
		if s.Short != "" && s.Short != singular {
			fmt.Fprintf(&b, "    shortNames: [%s]\n", s.Short)
		}
		b.WriteString("  versions:\n")
		for i, version := range s.Versions {
			fmt.Fprintf(&b, `  - name: %s
    served: true
    storage: %v
    subresources: {status: {}}
    additionalPrinterColumns:
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`, version, i == 0)
		}
	}
	return b.Bytes()
}
