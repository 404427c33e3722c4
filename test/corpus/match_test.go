package corpus_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// match compares what is wanted with what is there: of an object only the fields that are wanted count, null wants a field to be absent; a list's
// members are found by their name, type, key or ip where they have one, else by their place; a string that begins with ~ is a regular expression.
func match(at string, want, have any) error {
	switch w := want.(type) {
	case nil:
		return nil
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %s, want an object", at, show(have))
		}
		for k, v := range w {
			if v == nil {
				if x, there := h[k]; there && x != nil {
					return fmt.Errorf("%s.%s is %s, want none", at, k, show(x))
				}
				continue
			}
			if err := match(at+"."+k, v, h[k]); err != nil {
				return err
			}
		}
		return nil
	case []any:
		h, _ := have.([]any)
		for i, v := range w {
			x, where := member(v, h, i)
			if err := match(at+where, v, x); err != nil {
				return err
			}
		}
		return nil
	case string:
		text := fmt.Sprint(have)
		if have == nil {
			text = ""
		}
		if pattern, ok := strings.CutPrefix(w, "~"); ok {
			if !matches(pattern, text) {
				return fmt.Errorf("%s is %q, want a match of %q", at, text, pattern)
			}
			return nil
		}
		if text != w {
			return fmt.Errorf("%s is %q, want %q", at, text, w)
		}
		return nil
	}
	if fmt.Sprint(want) != fmt.Sprint(have) {
		return fmt.Errorf("%s is %s, want %v", at, show(have), want)
	}
	return nil
}

func matches(pattern, text string) bool {
	return regexp.MustCompile("(?s)" + pattern).MatchString(text)
}

// member finds the wanted member's counterpart.
func member(want any, list []any, place int) (found any, where string) {
	if w, ok := want.(map[string]any); ok {
		for _, key := range []string{"name", "type", "key", "ip"} {
			id, ok := w[key]
			if !ok {
				continue
			}
			for _, x := range list {
				if h, ok := x.(map[string]any); ok && h[key] == id {
					return x, fmt.Sprintf("[%v]", id)
				}
			}
			return nil, fmt.Sprintf("[%v]", id)
		}
	}
	if place < len(list) {
		found = list[place]
	}
	return found, fmt.Sprintf("[%d]", place)
}

func show(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func TestMatch(t *testing.T) {
	var have any
	if err := json.Unmarshal([]byte(`{"a":1,"s":"text","no":null,"list":[{"name":"x","v":true},{"name":"y","v":0}],"plain":["p","q"]}`), &have); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want string
		ok   bool
	}{
		{`{}`, true},
		{`{"a":1}`, true},
		{`{"a":2}`, false},
		{`{"a":"~^1$"}`, true},
		{`{"b":null,"no":null}`, true},
		{`{"a":null}`, false},
		{`{"s":"tex"}`, false},
		{`{"s":"~^t.xt$"}`, true},
		{`{"s":"~^x"}`, false},
		{`{"b":"x"}`, false},
		{`{"b":{"c":1}}`, false},
		{`{"list":[{"name":"y","v":0}]}`, true},
		{`{"list":[{"name":"y","v":1}]}`, false},
		{`{"list":[{"name":"z"}]}`, false},
		{`{"plain":["p"]}`, true},
		{`{"plain":["q"]}`, false},
		{`{"plain":["p","q","r"]}`, false},
	} {
		var want any
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if err := match("x", want, have); (err == nil) != c.ok {
			t.Errorf("%s: %v, want match %t", c.want, err, c.ok)
		}
	}
}
