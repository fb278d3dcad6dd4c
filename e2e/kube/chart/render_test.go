// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	helmkube "helm.sh/helm/v4/pkg/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"
)

// valueSets are values that together execute every branch of the templates.
func valueSets() map[string]string {
	return map[string]string{
		"nothing":    "",
		"revision":   "revision: canary",
		"tags":       "{revision: canary, tags: [prod, default]}",
		"replicas":   "{replicaCount: 3, resources: {limits: {memory: 1Gi}}, podDisruptionBudget: {maxUnavailable: 50%}}",
		"autoscaled": "{autoscaling: {enabled: true, maxReplicas: 9}, tags: [stable]}",
		"bare": `
podDisruptionBudget: {enabled: false}
networkPolicy: {enabled: false}
validation: {enabled: false}
injection: {enabled: false}
gatewaySecrets: {enabled: false}
gatewayAPI: {enabled: false}
remoteClusters: {enabled: false}
resources: {requests: null}
`,
		"openshift":           "platform: openshift",
		"cni":                 "{cni: {enabled: true}}",
		"cni, labels":         "{revision: labels, cni: {enabled: true, repair: {repairPods: false, labelPods: true}, confName: 10-a.conflist, excludeNamespaces: [kube-system, a]}, image: {pullPolicy: Never, pullSecrets: [registry]}, logAsJSON: true}",
		"cni, deletes":        "{cni: {enabled: true, hub: registry.example.com/cni, tag: v3, chained: false, nodeSelector: {a: b}, resources: null, repair: {repairPods: false, deletePods: true}}, injection: {values: {pilot: {cni: {provider: multus}, env: {A: b}}}}}",
		"cni, no repair":      "{cni: {enabled: true, repair: {enabled: false}}, injection: {values: {pilot: {cni: {enabled: false}}}}}",
		"remote secrets only": "{gatewaySecrets: {enabled: false}, webhooks: {url: 'https://control.example.com:15017/'}}",
		"everything": `
revision: v2
image: {hub: registry.example.com/mesh, name: control, tag: v1.2.3, pullPolicy: Always, pullSecrets: [registry, "other"]}
proxy: {hub: registry.example.com/proxies, image: proxyv2, tag: "1.0"}
service: {name: discovery, annotations: {a.example.com/b: "true"}, plaintext: true}
serviceAccount: {annotations: {iam.example.com/role: "12"}}
clusterID: east
network: net-1
meshConfig:
  trustDomain: example.org
  defaultConfig: {concurrency: 3, holdApplicationUntilProxyStarts: true}
  extensionProviders: [{name: otel, opentelemetry: {service: otel.svc, port: 4317}}]
meshNetworks: {networks: {net-1: {endpoints: [{fromRegistry: east}], gateways: [{address: 10.0.0.1, port: 15443}]}}}
injection:
  config: {policy: disabled, neverInjectSelector: [{matchExpressions: [{key: x, operator: Exists}]}], templates: {custom: "spec:\n  hostname: {{ .ObjectMeta.Name }}\n"}}
  values: {global: {proxy: {resources: {requests: {cpu: 10m}}}, multiCluster: {enabled: true}, logAsJson: true}, sidecarInjectorWebhook: {rewriteAppHTTPProbe: false}}
trustedNodeAccounts: [kube-system/ztunnel, a/b]
certificateSigners: [example.com/*]
logLevel: debug
logAsJSON: true
env: {PILOT_TRACE_SAMPLING: 1.5, PILOT_PUSH_THROTTLE: 100, SOMETHING: true, SHARED_MESH_CONFIG: shared, TEXT: "it's \"quoted\": {yes}"}
args: ["--domain=example.org", "--a=b: c"]
podAnnotations: {x: "1"}
podLabels: {team: mesh}
nodeSelector: {disk: ssd}
tolerations: [{key: a, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: x, operator: In, values: [z]}]}]}}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
priorityClassName: system-cluster-critical
terminationGracePeriodSeconds: 60
`,
	}
}

// tool runs outrigger and returns its standard output.
func tool(t *testing.T, kubeconfig string, args ...string) (string, error) {
	t.Helper()
	program, err := filepath.Abs("../../../bin/outrigger")
	if err != nil {
		t.Fatal(err)
	}
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "TMPDIR=" + t.TempDir()}
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), errors.Join(err, errors.New(problems.String()))
	}
	return out.String(), nil
}

func writeValues(t *testing.T, values string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func objectsOf(t *testing.T, manifests string) map[string]*unstructured.Unstructured {
	t.Helper()
	out := map[string]*unstructured.Unstructured{}
	for d := k8syaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		if len(o.Object) == 0 {
			continue
		}
		name := o.GetKind() + " " + o.GetName()
		if out[name] != nil {
			t.Errorf("%s is a duplicate", name)
		}
		out[name] = o
	}
}

// rendered returns what Helm renders, with the definitions of the kinds.
func (r *release) rendered(values map[string]any) string {
	r.t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		r.t.Fatal(err)
	}
	version, err := tool(r.t, "", "version", "--remote=false")
	if err != nil {
		r.t.Fatal(err)
	}
	chart.Metadata.AppVersion = strings.TrimSpace(strings.TrimPrefix(version, "client version: "))
	i := action.NewInstall(r.config)
	i.ReleaseName, i.Namespace, i.WaitStrategy, i.DryRunStrategy = r.name, r.namespace, helmkube.HookOnlyStrategy, action.DryRunServer
	out, err := i.Run(chart, values)
	if err != nil {
		r.t.Fatal(err)
	}
	manifests := asRelease(out).Manifest
	for _, crd := range chart.CRDObjects() {
		manifests += "\n---\n" + string(crd.File.Data)
	}
	return manifests
}

// TestRendering checks that outrigger install renders what Helm renders, except for the managed-by
// labels. The API server accepts all objects without unknown fields or invalid values.
func TestRendering(t *testing.T) {
	t.Parallel()
	r := newRelease(t)
	client, err := dynamic.NewForConfig(r.cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(r.cluster.Admin().Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for name, text := range valueSets() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			values := map[string]any{}
			if err := yaml.Unmarshal([]byte(text), &values); err != nil {
				t.Fatal(err)
			}
			out, err := tool(t, "", "install", "--dry-run", "--namespace", r.namespace, "-f", writeValues(t, text))
			if err != nil {
				t.Fatal(err)
			}
			helm := releaseIn(t, r.cluster, r.namespace)
			if revision, _ := values["revision"].(string); revision != "" {
				helm.name += "-" + revision
			}
			got, want := objectsOf(t, out), objectsOf(t, helm.rendered(values))
			for name, o := range got {
				for _, field := range [][]string{{"metadata", "labels"}, {"spec", "template", "metadata", "labels"}} {
					labels, found, err := unstructured.NestedStringMap(o.Object, field...)
					if err != nil || !found {
						continue
					}
					if labels["app.kubernetes.io/managed-by"] == "outrigger" {
						labels["app.kubernetes.io/managed-by"] = "Helm"
					}
					if by := labels["outrigger.dev/installed-in"]; field[0] == "metadata" && o.GetKind() != "CustomResourceDefinition" && by != r.namespace {
						t.Errorf("%s is installed in %q", name, by)
					}
					delete(labels, "outrigger.dev/installed-in")
					if err := unstructured.SetNestedStringMap(o.Object, labels, field...); err != nil {
						t.Fatal(err)
					}
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("outrigger install and Helm render different objects (-Helm +ours):\n%s", diff)
			}
			consistent(t, got)
			for name, o := range got {
				mapping, err := mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
				if err != nil {
					t.Fatal(err)
				}
				options := metav1.PatchOptions{FieldManager: "test", FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}}
				body, err := o.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := client.Resource(mapping.Resource).Namespace(o.GetNamespace()).Patch(t.Context(), o.GetName(), "application/apply-patch+yaml", body, options); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}
