// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestAutoImagePolicy injects a proxy into a container with the image auto, for which the API server
// sets the pull policy of the tag latest. That of the template applies, as for sidecars.
func TestAutoImagePolicy(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]corev1.PullPolicy{autoImage: corev1.PullNever, "example.test/own:1": corev1.PullAlways} {
		pod := podWith(map[string]string{"inject.istio.io/templates": "gateway"}, nil)
		pod.Spec.Containers = []corev1.Container{{Name: proxyName, Image: image, ImagePullPolicy: corev1.PullAlways}}
		result, err := newInjector(t, "", "{global: {imagePullPolicy: Never}}", "").Inject(Request{Pod: pod})
		if err != nil {
			t.Fatal(err)
		}
		if got := findContainer(proxyName, result.Pod).ImagePullPolicy; got != want {
			t.Errorf("the pull policy of the image %s is %q, want %q", image, got, want)
		}
	}
}
