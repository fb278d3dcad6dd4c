// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// webhookManifest is the configuration as users install it: it fails open until the control plane
// has responded.
const webhookManifest = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: %[1]s
  labels: {istio.io/rev: default}
webhooks:
- name: %[2]s
  clientConfig: {url: "https://%[3]s:15017/validate"}
  rules: [{operations: [CREATE, UPDATE], apiGroups: %[4]s, apiVersions: ["*"], resources: ["*"]}]
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
  timeoutSeconds: 5
`

// TestWebhook has the API server call the control plane: invalid objects are refused with all of
// their problems. The control plane writes the roots into the configuration, lets it fail closed
// once the webhook responds, and restores it after a change by others; a webhook for kinds of
// others stays open.
func TestWebhook(t *testing.T) {
	t.Parallel()
	c := configCluster(t)
	ctx := testContext(t)
	kubeconfig := install(t, c, "rbac.yaml", "rbac-config.yaml", "rbac-webhook.yaml")
	cp := startControl(t, kubeconfig, nil)
	own := fmt.Sprintf(webhookManifest, "istio-validator-istio-system", "validation.istio.io", cp.host, "[networking.istio.io, security.istio.io]")
	others := fmt.Sprintf(webhookManifest, "everything", "everything.example.com", cp.host, `["*"]`)
	if err := c.Apply(ctx, []byte(own+"---\n"+others)); err != nil {
		t.Fatal(err)
	}
	hooks := c.Admin().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	closed := func(name string, want admissionv1.FailurePolicyType) func() error {
		return func() error {
			got, err := hooks.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			h := got.Webhooks[0]
			if len(h.ClientConfig.CABundle) == 0 || *h.FailurePolicy != want {
				return fmt.Errorf("%s has %d bytes of roots and the policy %s", name, len(h.ClientConfig.CABundle), *h.FailurePolicy)
			}
			return nil
		}
	}
	soon(t, "the webhook is closed", closed("istio-validator-istio-system", admissionv1.Fail))
	soon(t, "the webhook of others stays open", closed("everything", admissionv1.Ignore))

	bad := "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: bad, namespace: default}\n" +
		"spec: {hosts: [catalog], http: [{rewrite: {}, route: [{destination: {host: catalog}}]}]}\n"
	err := c.Apply(ctx, []byte(bad))
	if err == nil || !strings.Contains(err.Error(), "denied the request") || !strings.Contains(err.Error(), "spec.http[0].rewrite") {
		t.Errorf("a bad object: %v", err)
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		t.Errorf("the error names no field: %v", err)
	}
	if err := c.Apply(ctx, []byte(strings.Replace(bad, "rewrite: {}, ", "", 1))); err != nil {
		t.Errorf("a good object: %v", err)
	}
	// The roots are removed.
	soon(t, "the roots are spoiled", func() error {
		got, err := hooks.Get(ctx, "istio-validator-istio-system", metav1.GetOptions{})
		if err != nil {
			return err
		}
		got.Webhooks[0].ClientConfig.CABundle = nil
		open := admissionv1.Ignore
		got.Webhooks[0].FailurePolicy = &open
		_, err = hooks.Update(ctx, got, metav1.UpdateOptions{})
		return err
	})
	soon(t, "the webhook is closed again", closed("istio-validator-istio-system", admissionv1.Fail))

	// The control plane is down: objects of the mesh are refused, all others are not.
	cp.Kill()
	soon(t, "objects of the mesh are refused", func() error {
		err := c.Apply(ctx, []byte(strings.Replace(bad, "rewrite: {}, ", "timeout: 1s, ", 1)))
		if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			return fmt.Errorf("written without the webhook: %v", err)
		}
		return nil
	})
	if err := c.Apply(ctx, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: default}\n")); err != nil {
		t.Errorf("an object of others: %v", err)
	}
	if err := cp.Start(ctx); err != nil {
		t.Fatal(err)
	}
	soon(t, "objects of the mesh are taken again", func() error {
		return c.Apply(context.WithoutCancel(ctx), []byte(strings.Replace(bad, "rewrite: {}, ", "timeout: 1s, ", 1)))
	})
}
