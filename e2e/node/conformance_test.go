// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	meshtests "sigs.k8s.io/gateway-api/conformance/tests/mesh"
	"sigs.k8s.io/gateway-api/conformance/utils/config"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
)

// TestMeshConformance runs the conformance tests of the Gateway API for meshes, in injected Pods with
// the echo program of the suite's own image. One feature is missing: as with VirtualServices, the
// host of a request selects the Service, not the address. The suite attempts some things ten times
// only, so that no other test may fill the machine with load.
func TestMeshConformance(t *testing.T) {
	t.Parallel()
	load.Lock()
	defer load.Unlock()
	crlog.SetLogger(logr.Discard())
	n := mesh.Node(t)
	if err := n.ApplyCRDs(t.Context(), filepath.Join(n.files.GatewayAPI, "config", "crd", "standard")); err != nil {
		t.Fatal(err)
	}
	n.importEcho(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, gatewayv1.Install} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	options := client.Options{Scheme: scheme}
	c, err := client.New(n.AdminConfig(), options)
	if err != nil {
		t.Fatal(err)
	}
	served := features.SetsToNamesSet(features.MeshCoreFeatures, features.MeshExtendedFeatures).Delete(features.SupportMeshClusterIPMatching)
	for _, f := range gatewayapi.Features(true) {
		served.Insert(features.FeatureName(f))
	}
	served.Delete(features.SupportGateway) // e2e/kube/conformance tests Gateways
	timeouts := config.DefaultTimeoutConfig()
	timeouts.DefaultPollInterval, timeouts.TestIsolation, timeouts.RequiredConsecutiveSuccesses = pollEvery, 0, 2
	timeouts.CreateTimeout, timeouts.DeleteTimeout = patience, patience
	timeouts.MaxTimeToConsistency, timeouts.NamespacesMustBeReady = patience, patience
	s, err := suite.NewConformanceTestSuite(suite.ConformanceOptions{
		ConfigurableOptions: suite.ConfigurableOptions{
			SupportedFeatures: served.UnsortedList(), TimeoutConfig: timeouts, CleanupBaseResources: true, CleanupTestResources: true,
			NamespaceLabels: map[string]string{"istio-injection": "enabled"},
		},
		Client: c, ClientOptions: options, Clientset: n.Admin(), RestConfig: n.AdminConfig(), ManifestFS: []fs.FS{&conformance.Manifests},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Setup(t, meshtests.MeshConformanceTests)
	if err := s.Run(t, meshtests.MeshConformanceTests); err != nil {
		t.Fatal(err)
	}
}

// importEcho imports an image with the name and the files that the suite's manifests use.
func (n *Node) importEcho(t *testing.T) {
	t.Helper()
	manifests, err := conformance.Manifests.ReadFile("mesh/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	image := regexp.MustCompile(`(?m)^ *image: (.+)$`).FindSubmatch(manifests)
	if image == nil {
		t.Fatalf("the manifests name no image:\n%s", manifests)
	}
	content := map[string]string{
		"usr/local/bin/client":      n.files.program("app"), // which runs the next one
		"usr/local/bin/echo-client": n.files.program("echo-client"),
		"usr/local/bin/server":      n.files.program("echo-server"),
	}
	_, secret := edgePair(t, 1)
	for name, key := range map[string]string{"cert.crt": corev1.TLSCertKey, "cert.key": corev1.TLSPrivateKeyKey} {
		content[name] = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(content[name], secret.Data[key], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	layer, err := layerOf(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := importImage(t.Context(), string(image[1]), layer, []string{"/usr/local/bin/server"}); err != nil {
		t.Fatal(err)
	}
}
