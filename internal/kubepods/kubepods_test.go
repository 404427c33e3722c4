package kubepods_test

import (
	"testing"

	"github.com/podplane/podplane/internal/kubepods"
)

func TestNames(t *testing.T) {
	for _, c := range []struct {
		tree             kubepods.Tree
		class            string
		all, of, pod     string
		dirOfAll, dirPod string
	}{
		{kubepods.Tree{}, "", "/kubepods", "/kubepods", "/kubepods/podu-1", "/kubepods", "/kubepods/podu-1"},
		{kubepods.Tree{Root: "/"}, kubepods.Burstable, "/kubepods", "/kubepods/burstable", "/kubepods/burstable/podu-1", "/kubepods", "/kubepods/burstable/podu-1"},
		{kubepods.Tree{Root: "/mine"}, kubepods.BestEffort, "/mine/kubepods", "/mine/kubepods/besteffort", "/mine/kubepods/besteffort/podu-1", "/mine/kubepods", "/mine/kubepods/besteffort/podu-1"},
		{kubepods.Tree{Systemd: true}, "", "kubepods.slice", "kubepods.slice", "kubepods-podu_1.slice", "kubepods.slice", "kubepods.slice/kubepods-podu_1.slice"},
		{
			kubepods.Tree{Systemd: true, Root: "/"},
			kubepods.Burstable, "kubepods.slice", "kubepods-burstable.slice", "kubepods-burstable-podu_1.slice",
			"kubepods.slice", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice",
		},
		{
			kubepods.Tree{Systemd: true, Root: "mine.slice"},
			"", "mine-kubepods.slice", "mine-kubepods.slice", "mine-kubepods-podu_1.slice",
			"mine.slice/mine-kubepods.slice", "mine.slice/mine-kubepods.slice/mine-kubepods-podu_1.slice",
		},
		{
			kubepods.Tree{Systemd: true, Root: "a-b.slice/one-node"},
			"", "a-b-one_node-kubepods.slice", "a-b-one_node-kubepods.slice", "a-b-one_node-kubepods-podu_1.slice",
			"a.slice/a-b.slice/a-b-one_node.slice/a-b-one_node-kubepods.slice",
			"a.slice/a-b.slice/a-b-one_node.slice/a-b-one_node-kubepods.slice/a-b-one_node-kubepods-podu_1.slice",
		},
		{
			kubepods.Tree{Systemd: true, Root: "-.slice"},
			"", "kubepods.slice", "kubepods.slice", "kubepods-podu_1.slice",
			"kubepods.slice", "kubepods.slice/kubepods-podu_1.slice",
		},
	} {
		for _, n := range []struct{ what, got, want string }{
			{"all", c.tree.All(), c.all},
			{"class", c.tree.Class(c.class), c.of},
			{"pod", c.tree.Pod(c.class, "u-1"), c.pod},
			{"directory of all", c.tree.Dir(c.tree.All()), c.dirOfAll},
			{"directory of the pod", c.tree.Dir(c.tree.Pod(c.class, "u-1")), c.dirPod},
		} {
			if n.got != n.want {
				t.Errorf("%+v, class %q: %s is %q, want %q", c.tree, c.class, n.what, n.got, n.want)
			}
		}
	}
}
