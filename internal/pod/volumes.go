package pod

// VolumeBootID is the attribute of each volume in volumed's records that says in which boot of the node (the kernel's
// boot_id) the volume was set up. What was READY in another boot is not: mounts do not survive a reboot.
const VolumeBootID = "bootID"
