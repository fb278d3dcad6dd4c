// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package conformance

import (
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/apis/v1alpha2"
	"sigs.k8s.io/gateway-api/apis/v1alpha3"
	"sigs.k8s.io/gateway-api/apis/v1beta1"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/config"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"

	"github.com/go-logr/logr"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/e2e/kube"
)

const class = "istio"

// only is the variable with the name of the only test to run; empty runs all.
const only = "OUTRIGGER_CONFORMANCE_TEST"

// TestConformance runs the suite for the supported features in the status of the GatewayClass.
func TestConformance(t *testing.T) {
	crlog.SetLogger(logr.Discard())
	cluster := kube.New(t, kube.Options{})
	w := newWorld(t, cluster)
	w.install()
	go w.play() // ends with the test

	known := map[features.FeatureName]bool{}
	for f := range features.AllFeatures {
		known[f.Name] = true
	}
	served := make([]features.FeatureName, 0, len(gatewayapi.Features(true)))
	for _, f := range gatewayapi.Features(true) {
		if !known[features.FeatureName(f)] {
			t.Errorf("the suite has no feature %s, and would run no test of it", f)
		}
		served = append(served, features.FeatureName(f))
	}
	timeouts := config.DefaultTimeoutConfig()
	timeouts.DefaultPollInterval = 50 * time.Millisecond
	timeouts.RequiredConsecutiveSuccesses = 2
	timeouts.TestIsolation = 0
	timeouts.MaxTimeToConsistency = 15 * time.Second
	timeouts.NamespacesMustBeReady = 60 * time.Second
	hostname := gatewayv1.HostnameAddressType
	options := suite.ConformanceOptions{
		ConfigurableOptions: suite.ConfigurableOptions{
			GatewayClassName: class, SupportedFeatures: served, TimeoutConfig: timeouts,
			UsableNetworkAddresses:   []gatewayv1.GatewaySpecAddress{{Type: &hostname, Value: "infra-backend-v1.gateway-conformance-infra.svc.cluster.local"}},
			UnusableNetworkAddresses: []gatewayv1.GatewaySpecAddress{{Type: &hostname, Value: "nobody"}},
			CleanupTestResources:     true, DisableParallelTests: false,
		},
		Client: w.client, Clientset: cluster.Admin(), RestConfig: cluster.AdminConfig(), ManifestFS: []fs.FS{&conformance.Manifests},
		ClientOptions: client.Options{Scheme: w.scheme},
	}
	s, err := suite.NewConformanceTestSuite(options)
	if err != nil {
		t.Fatal(err)
	}
	list := slices.DeleteFunc(slices.Clone(tests.ConformanceTests), func(test suite.ConformanceTest) bool {
		return !s.SupportedFeatures.HasAll(test.Features...) || !strings.HasPrefix(test.ShortName, os.Getenv(only))
	})
	s.Setup(t, list)
	if err := s.Run(t, list); err != nil {
		t.Fatal(err)
	}
	t.Run("Ingress", w.ingress)
	t.Run("HTTP3", w.http3)
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, gatewayv1.Install, v1alpha2.Install, v1alpha3.Install, v1beta1.Install,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}
