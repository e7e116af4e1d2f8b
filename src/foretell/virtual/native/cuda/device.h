/* What device.c offers to the driver and NVML. */
#ifndef FORETELL_DEVICE_H
#define FORETELL_DEVICE_H

void device_uuid(int device, unsigned char uuid[16]);
int device_attribute(int *value, int attribute, int device);
const char *error_name(int error);
const char *error_text(int error);
int runtime_version(void);

#endif
