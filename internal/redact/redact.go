// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package redact

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// Mark replaces a secret.
const Mark = "[redacted]"

// secretField is the name of a field whose value is a secret.
var secretField = regexp.MustCompile(`(?i)(passw|secret|token|credential|private.?key|api.?key|authorization|cookie)`)

// secretText is a text that is a secret wherever it is: a private key, a token, or the password in a
// URL.
var secretText = regexp.MustCompile(`(?s:-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$))|\bey[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*|(?i:\b(?:bearer|basic) )[A-Za-z0-9+/._~=-]{8,}|://[^/\s:@"]*:[^/\s@"]+@`)

// encodedPEM is the beginning of PEM in base64, up to its end: of "-----BEGIN ".
var encodedPEM = regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/_-]+=*`)

// withoutKeys replaces PEM in base64 if it has a private key.
func withoutKeys(text string) string {
	return encodedPEM.ReplaceAllStringFunc(text, func(encoded string) string {
		plain, err := base64.RawStdEncoding.DecodeString(strings.NewReplacer("=", "", "-", "+", "_", "/").Replace(encoded))
		if err != nil || strings.Contains(string(plain), "PRIVATE KEY") {
			return Mark
		}
		return encoded
	})
}

// whollySecret is the name of a field of which every text is a secret: those that Envoy's API marks as
// sensitive, Envoy's argument with a bootstrap, and a list of headers.
var whollySecret = regexp.MustCompile(`(?i)^(private_?key(_?provider)?|pkcs_?12|session_?ticket_?keys|(downstream_?)?auth_?username|context_?extensions|config_?yaml|include_?additional_?headers_?in_?check)$`)

// pollDelay is the duration of a private key provider in a mesh config.
const pollDelay = "pollDelay"

// harmlessField are fields whose names look like those of secrets, but whose values are names.
var harmlessField = map[string]bool{"credentialName": true, "credentialNames": true, "secretName": true, "fromCookies": true, "tokenAudience": true}

// conditionField is the name of a field with a text to compare, inlineField one of Envoy with a text in
// the configuration itself, apiKeyField one of Envoy's list of API keys, and valueField one with the value of
// what another field names.
var (
	inlineField    = regexp.MustCompile(`^inline(_s|S|_b|B)(tring|ytes)$`)
	apiKeyField    = regexp.MustCompile(`^(key|client)$`)
	conditionField = regexp.MustCompile(`^(exact|prefix|suffix|regex|safeRegex|contains|ignoreCase)$`)
	valueField     = regexp.MustCompile(`^([vV]alues?|notValues|rawValue|(string|exact|prefix|suffix|contains|safeRegex|range|present)_?[mM]atch)$`)
)

// keyMembers are the members of a JSON Web Key that are secret: of a symmetric key, or the private
// part of a pair (RFC 7518, section 6).
var keyMembers = map[string]bool{"k": true, "d": true, "p": true, "q": true, "dp": true, "dq": true, "qi": true, "oth": true}

// sentHeaders are lists of headers that proxies send to collectors and other servers, which may
// expect a key in a header of any name.
var sentHeaders = map[string]bool{"headers": true, "initialMetadata": true}

// Text replaces the private keys, tokens and passwords in a text.
func Text(text string) string { return withoutKeys(secretText.ReplaceAllString(text, Mark)) }

// JSON replaces the secrets in a value of JSON, which it changes.
func JSON(value any) any { return hidden(value, false) }

// hidden returns a value of JSON without secrets. If secret is true, all texts in it are.
func hidden(value any, secret bool) any {
	switch v := value.(type) {
	case map[string]any:
		name, _ := v["name"].(string) // an environment variable, a header that is matched
		sent, _ := v["key"].(string)  // a header that is set, an attribute
		object := v["kind"] == "Secret"
		_, webKey := v["kty"]
		named := secretField.MatchString(name) || secretField.MatchString(sent)
		for key, of := range v {
			if list, ok := of.([]any); ok && sentHeaders[key] {
				withoutValues(list)
			}
			holds := secretField.MatchString(key) && !harmlessField[key] && (isTexts(of) || onlyHas(of, conditionField) || onlyHas(of, inlineField) || onlyHas(of, apiKeyField)) ||
				key == "users" && onlyHas(of, inlineField) // of basic authentication
			if key == "annotations" {
				of = annotations(of)
			}
			v[key] = hidden(of, secret && key != pollDelay || holds || webKey && keyMembers[key] || object && (key == "data" || key == "stringData") || whollySecret.MatchString(key) ||
				named && valueField.MatchString(key))
		}
	case []any:
		for i := range v {
			v[i] = hidden(v[i], secret)
		}
	case string:
		if secret && v != "" {
			return Mark
		}
		return embedded(Text(v))
	}
	return value
}

// embedded returns a text without the secrets of the JSON that it may consist of, such as a JSON Web
// Key Set. Other texts are unchanged.
func embedded(text string) string {
	plain := strings.TrimSpace(text)
	if !strings.HasPrefix(plain, "{") && !strings.HasPrefix(plain, "[") {
		return text
	}
	var value any
	if json.Unmarshal([]byte(plain), &value) != nil {
		return text
	}
	out, err := json.Marshal(hidden(value, false))
	if err != nil || strings.Count(string(out), Mark) == strings.Count(text, Mark) {
		return text
	}
	return string(out)
}

// annotations returns annotations without secrets. Their values are texts of any format: kubectl
// keeps a copy of the object in one, and others contain YAML.
func annotations(value any) any {
	of, _ := value.(map[string]any)
	for name, v := range of {
		if text, ok := v.(string); ok {
			of[name] = Log(text)
		}
	}
	return value
}

// withoutValues replaces the values of a list of headers.
func withoutValues(headers []any) {
	for _, h := range headers {
		if header, ok := h.(map[string]any); ok && isTexts(header["value"]) {
			header["value"] = Mark
		}
	}
}

// onlyHas reports whether a value of JSON is an object with such fields only, as {"exact": "a"}, or a list of
// them.
func onlyHas(value any, names *regexp.Regexp) bool {
	if list, ok := value.([]any); ok {
		return len(list) > 0 && !slices.ContainsFunc(list, func(v any) bool { return !onlyHas(v, names) })
	}
	fields, ok := value.(map[string]any)
	for key := range fields {
		ok = ok && names.MatchString(key)
	}
	return ok && len(fields) > 0
}

// isTexts reports whether a value of JSON is a text or a list of texts.
func isTexts(value any) bool {
	if list, ok := value.([]any); ok {
		return !slices.ContainsFunc(list, func(v any) bool { return !isTexts(v) })
	}
	_, ok := value.(string)
	return ok
}
