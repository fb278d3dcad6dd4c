// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// covers reports whether outer matches every value that inner matches. Nil and empty matches match
// every value. It returns false for regular expressions, which cannot be compared.
func covers(outer, inner *networkingv1alpha3.StringMatch) bool {
	if outer.GetMatchType() == nil {
		return true
	}
	if inner.GetMatchType() == nil || outer.GetRegex() != "" || inner.GetRegex() != "" {
		return false
	}
	prefix, isPrefix := outer.GetMatchType().(*networkingv1alpha3.StringMatch_Prefix)
	if !isPrefix {
		return proto.Equal(outer, inner)
	}
	return strings.HasPrefix(inner.GetExact()+inner.GetPrefix(), prefix.Prefix)
}

// narrower returns the match of the delegate if it is the narrower one, or the match of the root if
// the delegate matches every value. Otherwise it returns false.
func narrower(root, sub *networkingv1alpha3.StringMatch) (*networkingv1alpha3.StringMatch, bool) {
	switch {
	case sub.GetMatchType() == nil && (root != nil || sub == nil):
		return root, true
	case covers(root, sub):
		return sub, true
	}
	return nil, false
}

// wider returns the match that covers the other one, because a merged route excludes the values
// that either route excludes. It returns false if neither covers the other.
func wider(root, sub *networkingv1alpha3.StringMatch) (*networkingv1alpha3.StringMatch, bool) {
	switch {
	case covers(root, sub):
		return root, true
	case covers(sub, root):
		return sub, true
	}
	return nil, false
}
