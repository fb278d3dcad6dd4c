// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestOpenShift checks the user and group of proxies for annotations of a namespace.
func TestOpenShift(t *testing.T) {
	t.Parallel()
	const apart = "1000620000/10000"
	for _, c := range []struct {
		users, groups string
		user, group   int64
		warning       string
	}{
		{"", "", 1337, 1337, ""},
		{apart, "", 1000629999, 1000629999, ""},
		{apart, "5-9,20/5", 1000629999, 9, ""},
		{"1000-2000", "7/1", 2000, 7, ""},
		{"", apart, 1337, 1000629999, ""},
		{"1000620000", "", 1337, 1337, uidRange + " of the namespace is \"1000620000\""},
		{"10/0", "5/5", 1337, 9, uidRange},
		{"9-5", "5/5", 1337, 9, uidRange},
		{"-1/5", "5/5", 1337, 9, uidRange},
		{"2147483647/2", "5/5", 1337, 9, uidRange},
		{apart, "x", 1000629999, 1000629999, groups + " of the namespace is \"x\""},
	} {
		in := newInjector(t, "", "", "")
		in.Annotations = func(string) (map[string]string, error) {
			return map[string]string{uidRange: c.users, groups: c.groups}, nil
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}}}
		pod.Labels = map[string]string{"sidecar.istio.io/inject": "true"}
		out, err := in.Inject(Request{Pod: pod, Namespace: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		s := find(out.Pod.Spec.InitContainers, proxyName).SecurityContext
		if *s.RunAsUser != c.user || *s.RunAsGroup != c.group {
			t.Errorf("%q, %q: the proxy runs as %d:%d, want %d:%d", c.users, c.groups, *s.RunAsUser, *s.RunAsGroup, c.user, c.group)
		}
		if args := strings.Join(find(out.Pod.Spec.InitContainers, initName).Args, " "); !strings.Contains(args, fmt.Sprint(" -u ", c.user, " ")) {
			t.Errorf("%q, %q: the arguments of interception are %s, want the user %d", c.users, c.groups, args, c.user)
		}
		if got := strings.Join(out.Warnings, "\n"); (got == "") != (c.warning == "") || !strings.Contains(got, c.warning) {
			t.Errorf("%q, %q: warnings %q, want %q", c.users, c.groups, got, c.warning)
		}
	}
	in := newInjector(t, "", "", "")
	in.Annotations = func(string) (map[string]string, error) { return nil, errors.New("not read yet") }
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}}}
	pod.Labels = map[string]string{"sidecar.istio.io/inject": "true"}
	if _, err := in.Inject(Request{Pod: pod, Namespace: "shop"}); err == nil || !strings.Contains(err.Error(), "not read yet") {
		t.Errorf("Inject = %v, want the error of the namespaces", err)
	}
}
